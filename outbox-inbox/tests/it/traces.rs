//! Subscribers of traces for one test, beside tests that have none.

use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Dispatch, Subscriber};

/// What keeps a subscriber in its place.
pub(crate) type Listening = (Dispatch, DefaultGuard);

/// Makes this the subscriber of the current thread until what is returned is dropped.
pub(crate) fn listen(subscriber: impl Subscriber + Send + Sync + 'static) -> Listening {
    // With one subscriber alone, tracing would ask that of the thread that logs first, and other tests have none.
    let second = Dispatch::new(tracing_subscriber::registry());
    (second, set_default(subscriber))
}
