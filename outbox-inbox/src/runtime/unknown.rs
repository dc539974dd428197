//! What happens to event types and versions that no handler of this process takes: nobody wants them, or another version of the program does, or another
//! program.
//!
//! Invariant: what somebody has asked for under the consumer's name is not acknowledged in silence; it goes back to the broker, is kept, or is skipped
//! because the configuration says so. Not here: who has asked for what, which the broker knows ([`outbox_core::Delivery::is_asked_for`]).

use std::sync::PoisonError;
use std::time::Duration;

use outbox_core::SubscriberError;

use super::attempt::Attempt;
use super::consumer::Consumer;
use super::met::{MET_MAX, News};
use super::routed::Handling;
use crate::config::{UnknownEvent, UnknownVersion};
use crate::database::roll_back;
use crate::dedup::Claim;
use crate::dedup::claim::Claimant;
use crate::handler::describe;

/// Wait for a broker that could not say who has asked for what.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Attempt<'_> {
    /// Acknowledges what nobody asked for. Where sequences are kept it still counts.
    pub(super) async fn not_wanted(&mut self) -> Handling {
        tracing::debug!(event_type = %self.message.event_type, "event type is not wanted here, skipped");
        let consumer = self.consumer;
        let keeper = self.keeper_of_sequence().filter(|_| consumer.keeps_sequences());
        let Some(place) = keeper.as_ref().and_then(Claimant::place) else {
            return Handling::Skipped;
        };
        // A crash after the commit: the message comes again, and its number is passed already.
        let claimed = async {
            let _turn = consumer.shared.database.turn().await;
            let tx = consumer.shared.database.begin().await?;
            match place.claim(&tx, self.gaps()).await {
                Ok(turn) => tx.commit().await.map(|()| turn),
                Err(error) => {
                    roll_back(tx).await;
                    Err(error)
                }
            }
        };
        match claimed.await {
            Ok(Claim::Early { expected, failing }) => self.early(expected, failing),
            Ok(_) => Handling::Skipped,
            Err(error) => self.later(&describe(&error)),
        }
    }

    /// Other versions of the event type have a handler here.
    pub(super) async fn unknown_version(&mut self) -> Handling {
        let (event_type, version) = (&self.message.event_type, self.message.event_version);
        let error = format!(
            "event `{event_type}` version {version} has no handler in consumer `{}`, other versions have",
            self.consumer.name
        );
        match self.consumer.shared.config.unknown_version {
            UnknownVersion::Retry if self.routed.letter.is_none() => {
                self.send_back(&format!("{event_type} version {version}")).await
            }
            UnknownVersion::Ignore if self.routed.letter.is_none() => {
                tracing::warn!(event_id = %self.message.event_id, %error, "ignored");
                self.not_wanted().await
            }
            _ => self.dead_letter(&error).await,
        }
    }

    /// Another version of the program, or another program, is to handle this.
    pub(super) async fn unknown_event(&mut self) -> Handling {
        let (consumer, event_type) = (self.consumer, &self.message.event_type);
        match consumer.shared.config.unknown_event {
            UnknownEvent::Retry => self.send_back(event_type).await,
            UnknownEvent::Skip => {
                if consumer.is_new(event_type) {
                    tracing::warn!(
                        consumer = consumer.name,
                        %event_type,
                        "event type has no handler here, although another version of the program has asked for it: its messages are skipped, as configured"
                    );
                }
                self.not_wanted().await
            }
            UnknownEvent::DeadLetter => {
                let error = format!(
                    "event `{event_type}` has no handler here, another version of consumer `{}` has asked for it",
                    consumer.name
                );
                self.dead_letter(&error).await
            }
        }
    }

    /// Another version of the program gets the message. `what` it is that has no handler here.
    async fn send_back(&mut self, what: &str) -> Handling {
        let consumer = self.consumer;
        // Where numbers are the order, later ones must not pass it, in any process: whoever handles it would find it stale. A crash after
        // this: it is delivered again, and noted again.
        let keeper = consumer.place_of_unknown(self.message, self.source);
        if let Some(place) = keeper.as_ref().and_then(Claimant::place)
            && let Err(error) = place.note_failing(consumer.shared.database.pool()).await
        {
            return self.later(&describe(&error));
        }
        if consumer.is_new(what) {
            tracing::warn!(
                consumer = consumer.name,
                event_type = what,
                "event type, or its version, has no handler here, but another version of the program is to handle it: its messages go back to the broker \
                 until one runs that does; if none will, change UnknownEvent or UnknownVersion, or take it off the consumer's list (operations.md, Versions)"
            );
        }
        let returns = u32::try_from(self.incoming.delivery_count).unwrap_or(u32::MAX);
        let backoff = consumer.shared.config.backoff;
        Handling::SentBack {
            retry_after: backoff.delay(returns, &mut fastrand::Rng::new()),
        }
    }
}

impl Consumer {
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
        let news = met.meet(what);
        if news == News::Last {
            tracing::warn!(
                consumer = self.name,
                "{MET_MAX} event types and versions without a handler were met; further ones are counted in `inbox_sent_back_total` and \
                 `inbox_skipped_total`, but not logged"
            );
        }
        news != News::No
    }
}
