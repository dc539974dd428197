//! What happens to event types and versions that no handler of this process takes, while another version of the program does, or another program.
//!
//! Invariant: what somebody has asked for under the consumer's name is not acknowledged in silence; it goes back to the broker, is kept, or is skipped
//! because the configuration says so. Absent here: who has asked for what, which the broker knows ([`outbox_core::Delivery::is_asked_for`]).

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use outbox_core::{Incoming, Message, SubscriberError};

use super::consumer::{Consumer, Stop};
use super::routed::{Handling, RoutedMessage};
use crate::config::UnknownEvent;
use crate::dedup::attempts::Count;
use crate::dedup::claim::Claimant;
use crate::handler::describe;

/// Wait for a broker that could not say who has asked for what.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Most event types and versions that are remembered as met. A foreign sender may make up any number of versions.
const MET_MAX: usize = 1_000;

impl Consumer {
    /// Another version of the program is to handle this.
    pub(super) async fn unknown_event(
        &self,
        incoming: &Incoming,
        routed: &mut RoutedMessage,
        message: &Arc<Message>,
        stop: &Stop,
    ) -> Handling {
        let event_type = &message.event_type;
        match self.shared.config.unknown_event {
            UnknownEvent::Retry => self.send_back(incoming, routed, message, event_type).await,
            UnknownEvent::Skip => {
                if self.is_new(event_type) {
                    tracing::warn!(
                        consumer = self.name,
                        %event_type,
                        "event type has no handler here, although another version of the program has asked for it: its messages are skipped, as configured"
                    );
                }
                self.not_wanted(routed, message).await
            }
            UnknownEvent::DeadLetter => {
                if let Some(handling) = self.wait_for_turn(routed, message, None).await {
                    return handling;
                }
                let error = format!(
                    "event `{event_type}` has no handler here, another version of consumer `{}` has asked for it",
                    self.name
                );
                let keeper = self.keeper_of_sequence(message);
                self.failed(
                    incoming,
                    routed,
                    message,
                    keeper.as_ref(),
                    Count::Nothing,
                    true,
                    &error,
                    stop,
                )
                .await
            }
        }
    }

    /// Another version of the program gets the message. `what` it is that has no handler here.
    pub(super) async fn send_back(
        &self,
        incoming: &Incoming,
        routed: &mut RoutedMessage,
        message: &Message,
        what: &str,
    ) -> Handling {
        // Where numbers are the order, later ones must not pass it, in any process: whoever handles it would find it stale. A crash after
        // this: it is delivered again, and noted again.
        let keeper = self.place_of_unknown(message);
        if let Some(place) = keeper.as_ref().and_then(Claimant::place)
            && let Err(error) = place.note_failing(self.shared.database.pool()).await
        {
            return self.later(routed, &describe(&error));
        }
        if self.is_new(what) {
            tracing::warn!(
                consumer = self.name,
                event_type = what,
                "event type, or its version, has no handler here, but another version of the program is to handle it: its messages go back to the broker \
                 until one runs that does; if none will, change UnknownEvent or UnknownVersion, or take it off the consumer's list (operations.md, Versions)"
            );
        }
        let returns = u32::try_from(incoming.delivery_count).unwrap_or(u32::MAX);
        let backoff = self.shared.config.backoff;
        Handling::SentBack {
            retry_after: backoff.delay(returns, &mut fastrand::Rng::new()),
        }
    }

    /// The broker could not say whether somebody has asked for a message: it must not be acknowledged.
    pub(super) fn unknown_wishes(&self, error: &SubscriberError) -> Handling {
        tracing::warn!(consumer = self.name, error = %describe(error), "whether somebody has asked for an event type is not known, asked again");
        Handling::Later {
            retry_after: ASK_AGAIN_AFTER,
        }
    }

    /// Whether something without a handler is met for the first time, as far as that is remembered.
    fn is_new(&self, what: &str) -> bool {
        let mut met = self.unknown_met.lock().unwrap_or_else(PoisonError::into_inner);
        met.len() < MET_MAX && !met.contains(what) && met.insert(what.to_owned())
    }
}
