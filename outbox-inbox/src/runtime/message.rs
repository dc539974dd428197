//! A message in the memory of a consumer, and its state between attempts.

use std::sync::{Arc, OnceLock};

use outbox_core::Message;
use outbox_core::codec::DecodeError;
use tokio::time::Instant;

use crate::dead_letter::StoredDeadLetter;
use crate::handler::Registration;

#[derive(Debug, Clone)]
pub(crate) struct RoutedMessage {
    pub(crate) message: Result<Arc<Message>, Refused>,
    pub(crate) source: Arc<str>,
    pub(crate) route: Route,
    pub(crate) memory: Memory,
    pub(crate) letter: Option<Arc<StoredDeadLetter>>,
}

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Refused {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(
        "event type `{event_type}` in the headers does not belong on the subject of the message: the sender \
         may lack the right to publish it; for a stream with another subject layout, disable the check in \
         the subscriber"
    )]
    Subject {
        /// The error omits the aggregate id, because the id may be personal data.
        event_type: String,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Route {
    Handler {
        handler: Arc<Registration>,
        upcast_to: Option<u32>,
    },
    UnknownVersion,
    /// No handler of this process takes the event type. Subscriptions of other programs are not yet
    /// checked.
    NotWanted,
    /// No handler of this process takes the event type, but another program with the same consumer
    /// name subscribed to it.
    UnknownEvent,
    Unreadable,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    /// Whether the attempt is counted before the handler runs, because an earlier run may have
    /// failed or crashed.
    pub(crate) count_first: bool,
    pub(crate) counted: Option<u32>,
    pub(crate) database_failures: u32,
    pub(crate) interruptions: u32,
    /// Number of panics. Panics of a decoded message count as attempts.
    pub(crate) panics: u32,
    pub(crate) deferred: bool,
    pub(crate) begun: bool,
    pub(crate) early: Option<Early>,
}

impl Memory {
    pub(crate) fn sent_away(self) -> Self {
        Self {
            counted: None,
            begun: false,
            ..self
        }
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.counted.is_some() || self.begun
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    pub(crate) expected: u64,
    pub(crate) since: Instant,
    /// Whether the message need not wait longer: the maximum wait has expired, or the stream no
    /// longer holds the aggregate's first messages.
    pub(crate) expired: bool,
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

pub(crate) type Left = Arc<OnceLock<Instant>>;
