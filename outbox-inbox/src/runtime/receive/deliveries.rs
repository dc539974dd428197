//! Where the deliveries of a consumer come from, through everything that a broker does.
//!
//! Invariant: waiting for the next step can be cancelled at any time and loses nothing. Not here:
//! the reaction to trouble ([`super::receiver`]).

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::{Subscriber, SubscriberError, Subscription};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Waits after trouble with the broker.
pub(crate) const TROUBLE: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(10),
};

/// A subscription that has been silent for so long, although the broker has messages, is opened
/// anew.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How often a consumer that has nothing to do asks the broker whether there is more (`drain`
/// only).
const IDLE_CHECK: Duration = Duration::from_millis(10);

/// Most time that one wait counts: a process that stood still for longer did not receive meanwhile.
const WAITED_MAX: Duration = Duration::from_millis(500);

pub(crate) type DeliveryOf<S> = <<S as Subscriber>::Subscription as Subscription>::Delivery;
type Subscribing<S> =
    Pin<Box<dyn Future<Output = Result<<S as Subscriber>::Subscription, SubscriberError>> + Send>>;

/// A subscription that is over, and what it had fetched.
pub(crate) type Ended<S> = (<S as Subscriber>::Subscription, Vec<DeliveryOf<S>>);

/// The state of a consumer's subscription.
pub(crate) enum Deliveries<S: Subscriber> {
    Open(S::Subscription),
    /// The subscription is ending, because it fell silent or its consumer is paused. The next one
    /// begins after that.
    Ending(Pin<Box<dyn Future<Output = Ended<S>> + Send>>),
    Subscribing(Subscribing<S>),
    /// After trouble: nothing is received until this time.
    Paused(Instant, Option<S::Subscription>),
    /// The consumer is paused, and receives nothing until it is resumed. The subscription that has
    /// ended can still be flushed.
    Closed(Option<S::Subscription>),
}

/// The next step of the deliveries.
pub(crate) enum Received<S: Subscriber> {
    Delivery(DeliveryOf<S>),
    /// Nothing has come for a moment.
    Nothing,
    /// The consumer was paused or resumed.
    PauseChanged,
    Subscribed(S::Subscription),
    /// A subscription is over; what it had fetched.
    Ended(Ended<S>),
    /// A pause is over.
    Resume(Option<S::Subscription>),
    Trouble(SubscriberError),
}

impl<S: Subscriber> Deliveries<S> {
    /// Ends the subscription. Returns it, if there is one, and what it had fetched.
    pub(crate) async fn stop(self) -> (Option<S::Subscription>, Vec<DeliveryOf<S>>) {
        match self {
            Self::Open(mut subscription) | Self::Paused(_, Some(mut subscription)) => {
                let fetched = subscription.stop().await;
                (Some(subscription), fetched)
            }
            Self::Ending(ending) => {
                let (subscription, fetched) = ending.await;
                (Some(subscription), fetched)
            }
            Self::Closed(subscription) => (subscription, Vec::new()),
            // One that begins has not received anything yet.
            Self::Subscribing(_) | Self::Paused(_, None) => (None, Vec::new()),
        }
    }

    /// Waits for the next step, and adds the time of waiting for an open subscription to `waited`.
    /// Cancel-safe.
    pub(crate) async fn next(&mut self, with_pauses: bool, waited: &mut Duration) -> Received<S> {
        match self {
            Self::Open(subscription) => {
                let _stopwatch = Stopwatch(Instant::now(), waited);
                let next = subscription.next();
                let delivery = if with_pauses {
                    match timeout(IDLE_CHECK, next).await {
                        Ok(delivery) => delivery,
                        Err(_) => return Received::Nothing,
                    }
                } else {
                    next.await
                };
                delivery.map_or_else(Received::Trouble, Received::Delivery)
            }
            Self::Ending(ending) => Received::Ended(ending.await),
            Self::Subscribing(subscribing) => subscribing
                .await
                .map_or_else(Received::Trouble, Received::Subscribed),
            Self::Paused(until, subscription) => {
                sleep_until(*until).await;
                Received::Resume(subscription.take())
            }
            Self::Closed(_) if with_pauses => {
                sleep(IDLE_CHECK).await;
                Received::Nothing
            }
            Self::Closed(_) => std::future::pending().await,
        }
    }
}

/// Adds the time from its start until it is dropped.
struct Stopwatch<'a>(Instant, &'a mut Duration);

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        *self.1 += self.0.elapsed().min(WAITED_MAX);
    }
}
