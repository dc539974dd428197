//! A message in the memory of a consumer: its handler, and its state between attempts.

use std::sync::{Arc, OnceLock};

use outbox_core::Message;
use outbox_core::codec::DecodeError;
use tokio::time::Instant;

use crate::dead_letter::StoredDeadLetter;
use crate::handler::Registration;

#[derive(Debug, Clone)]
pub(crate) struct RoutedMessage {
    pub(crate) message: Result<Arc<Message>, Refused>,
    /// The service that recorded the message; empty if unknown.
    pub(crate) source: Arc<str>,
    pub(crate) route: Route,
    pub(crate) memory: Memory,
    /// The source dead letter, if the broker did not deliver the message.
    pub(crate) letter: Option<Arc<StoredDeadLetter>>,
}

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Refused {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Valid headers on a subject of other events.
    #[error(
        "headers say event `{event_type}`, which does not belong on the subject that the message came on: its sender may have no right \
         to publish this event; if a stream has subjects of another layout, tell the subscriber not to check them"
    )]
    Subject {
        /// Event type in the headers. The aggregate is left out, because it may be personal data.
        event_type: String,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Route {
    /// This handler takes this version, or a version that the message can be converted to.
    Handler {
        handler: Arc<Registration>,
        upcast_to: Option<u32>,
    },
    /// Handlers here take only other versions of this event type.
    UnknownVersion,
    /// No handler here takes this event type. Other subscribers are not looked up yet.
    NotWanted,
    /// No handler here takes this event type, but another program subscribed under the consumer's
    /// name.
    UnknownEvent,
    Unreadable,
}

/// State of a message while it is in this process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    /// It may have failed before, perhaps with its process: the attempt is counted before it runs.
    pub(crate) count_first: bool,
    /// The number of an attempt that is counted and has not run.
    pub(crate) counted: Option<u32>,
    /// Consecutive database errors.
    pub(crate) database_failures: u32,
    /// Runs ended by a conflict or a lost connection.
    pub(crate) interruptions: u32,
    /// Panics of a delivery that is no message. For a message, panics are attempts.
    pub(crate) panics: u32,
    /// The handler requested a later run, so the message runs alone.
    pub(crate) deferred: bool,
    /// This process has taken its dead letter.
    pub(crate) begun: bool,
    /// It waits for earlier messages of its aggregate.
    pub(crate) early: Option<Early>,
}

impl Memory {
    /// The state that remains valid after a return to the broker and a redelivery.
    pub(crate) fn sent_away(self) -> Self {
        Self {
            counted: None,
            begun: false,
            ..self
        }
    }

    /// Whether the database has a count or mark to undo if the message does not run.
    pub(crate) fn is_recorded(&self) -> bool {
        self.counted.is_some() || self.begun
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    /// First missing sequence.
    pub(crate) expected: u64,
    pub(crate) since: Instant,
    /// The wait exceeded its bound, which was reported, or the beginning of the aggregate is no
    /// longer on the stream.
    pub(crate) expired: bool,
    /// Whether it is settled, or the broker was queried, if the beginning of the aggregate has left
    /// the stream.
    pub(crate) asked: bool,
}

impl RoutedMessage {
    pub(crate) fn new(message: Result<Arc<Message>, Refused>, route: Route, delivered_before: bool) -> Self {
        Self {
            message,
            source: "".into(),
            route,
            memory: Memory {
                count_first: delivered_before,
                ..Memory::default()
            },
            letter: None,
        }
    }

    /// Whether it may have failed before, in any process.
    pub(crate) fn has_failed(&self) -> bool {
        let memory = &self.memory;
        memory.count_first || memory.deferred || memory.interruptions > 0 || self.letter.is_some()
    }

    pub(crate) fn handler(&self) -> Option<&Registration> {
        match &self.route {
            Route::Handler { handler, .. } => Some(handler),
            _ => None,
        }
    }

    /// The handler of a message that may share a transaction, because nothing about it is in doubt.
    pub(crate) fn batchable(&self) -> Option<&Arc<Registration>> {
        match &self.route {
            Route::Handler { handler, .. } => {
                let in_doubt = self.memory.count_first || self.memory.deferred || self.letter.is_some();
                (!in_doubt).then_some(handler)
            }
            _ => None,
        }
    }
}

/// When deliveries were returned to the broker. Empty until then.
pub(crate) type Left = Arc<OnceLock<Instant>>;
