//! Tracing subscribers for one test, in parallel with tests without a subscriber.

use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Dispatch, Subscriber};

pub(crate) type Listening = (Dispatch, DefaultGuard);

pub(crate) fn listen(subscriber: impl Subscriber + Send + Sync + 'static) -> Listening {
    // With a single subscriber, tracing would use the subscriber of the thread that logs first, and
    // other tests have none.
    let second = Dispatch::new(tracing_subscriber::registry());
    (second, set_default(subscriber))
}
