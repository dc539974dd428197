//! Tracing subscribers for one test.

use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Dispatch, Subscriber};

pub(crate) type Listening = (Dispatch, DefaultGuard);

pub(crate) fn listen(subscriber: impl Subscriber + Send + Sync + 'static) -> Listening {
    let second = Dispatch::new(tracing_subscriber::registry());
    (second, set_default(subscriber))
}
