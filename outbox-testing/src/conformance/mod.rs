//! The promises of the seams as code: one public async function per promise, which every implementation runs.
//!
//! A suite consists of a fixture trait and a macro. An adapter implements the trait, which brings its back end into the
//! states that the promises need. The macro makes one test per promise:
//!
//! ```
//! # #[allow(dead_code)]
//! mod promises {
//! #   use outbox_testing::conformance::memory::MemoryStoreFixture;
//!     use outbox_testing::backend_url;
//!
//!     async fn fixture() -> Option<MemoryStoreFixture> {
//!         let url = backend_url("MY_TEST_URL")?; // Says so and skips when there is no server.
//!         Some(MemoryStoreFixture::new()) // Here: fresh tables at `url`.
//!     }
//!
//!     outbox_testing::store_conformance!(#[tokio::test] fixture().await);
//! }
//! ```
//!
//! Invariant: a suite asks for nothing beyond the contract in [`outbox_core::store`], [`outbox_core::log`],
//! [`outbox_core::publisher`], [`outbox_core::subscriber`] or [`outbox_core::dedup`]. Each promise has a planted mistake
//! ([`crate::wrong`]) that the suite detects. Differences between back ends are methods of the fixture; a promise that needs what a back end lacks
//! does not apply, and says so. Not here: performance, see `stress`.

use crate::store_types::*;
use crate::{Operator as _, store_methods};

pub mod dedup_store;
pub mod log;
pub mod memory;
pub mod probe;
pub mod publisher;
pub mod store;
pub mod stream_log;
pub mod subscriber;

/// The store of a fixture. Its calls must succeed.
struct Store<'f, S>(&'f S);

fn store<F: store::StoreFixture>(fixture: &F) -> Store<'_, F::Store> {
    Store(fixture.store())
}

macro_rules! answered {
    ($self:ident, $method:ident($($argument:expr),*)) => {
        match $self.0.$method($($argument),*).await {
            Ok(answer) => answer,
            Err(error) => panic!("{} fails: {}", stringify!($method), outbox_core::describe(&error)),
        }
    };
}

/// The result of a call that must succeed.
type StoreResult<T> = T;

impl<S: OutboxAudit> Store<'_, S> {
    store_methods!(self, answered; preflight announce relays acquire renew release leave fetch fetch_waiting settle
        purge pauses finish_pauses backlog list page retry skip replay blocked resume forget forget_idle pause unpause
        published find recorded_between search_published head block expired_relays partitions advance resume_as
        forget_as pause_as unpause_as write_down finish operations operation messages_of);
}

/// Makes one test per promise. Not public API: the macros of the suites call it.
#[doc(hidden)]
#[macro_export]
macro_rules! __promises {
    // `$test` stays one token tree, because it is repeated for each promise and not along with them.
    ($suite:ident, $test:tt, $fixture:expr, [$($promise:ident,)*]) => {
        $($crate::__promises!(@one $suite, $test, $fixture, $promise);)*
    };
    (@one $suite:ident, [$($test:tt)*], $fixture:expr, $promise:ident) => {
        $($test)*
        async fn $promise() {
            if let ::core::option::Option::Some(fixture) = $fixture {
                $crate::conformance::$suite::$promise(&fixture).await;
            }
        }
    };
}
