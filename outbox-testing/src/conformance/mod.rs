//! Conformance suites: one public async function per rule of a contract, for every implementation.
//!
//! A suite is a fixture trait and a macro. An adapter implements the trait, and the macro generates
//! one test per rule:
//!
//! ```ignore
//! async fn fixture() -> Option<MyFixture> {
//!     let url = backend_url("MY_TEST_URL")?; // Says so and skips when there is no server.
//!     Some(MyFixture::new(url).await) // Fresh tables.
//! }
//!
//! outbox_testing::store_conformance!(#[tokio::test] fixture().await);
//! ```
//!
//! Invariant: a suite requires only the contract in [`outbox_core::store`], [`outbox_core::log`],
//! [`outbox_core::publisher`], [`outbox_core::subscriber`] or [`outbox_core::dedup`].
//! The tests of this crate plant a mistake for each rule. A rule that does not apply to a back end
//! prints the reason and passes.

use crate::store_types::*;
use crate::{Operator as _, store_methods};

pub mod dedup_store;
pub mod log;
pub mod probe;
pub mod publisher;
pub mod store;
pub mod stream_log;
pub mod subscriber;

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

type StoreResult<T> = T;

impl<S: OutboxAudit> Store<'_, S> {
    store_methods!(self, answered; preflight announce relays acquire renew release leave fetch fetch_waiting settle
        purge pauses finish_pauses backlog list page retry skip replay blocked resume forget forget_idle pause unpause
        published find recorded_between search_published head block expired_relays partitions advance resume_as
        forget_as pause_as unpause_as write_down finish operations operation messages_of);
}

/// Not public API.
#[doc(hidden)]
#[macro_export]
macro_rules! __promises {
    // `$test` is matched as one token tree, so that the inner repetition can use it for each
    // promise.
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
