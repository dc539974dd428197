//! A message in the memory of a consumer: its handler, and its state between attempts.
//!
//! Not here: one attempt ([`crate::runtime::run::attempt`]).

use std::sync::{Arc, OnceLock};

use outbox_core::Message;
use outbox_core::codec::DecodeError;
use tokio::time::Instant;

use crate::dead_letter::StoredDeadLetter;
use crate::handler::Registration;

/// A message at a consumer.
#[derive(Debug, Clone)]
pub(crate) struct RoutedMessage {
    pub(crate) message: Result<Arc<Message>, Refused>,
    /// The service that recorded the message; empty if that is not known.
    pub(crate) source: Arc<str>,
    pub(crate) route: Route,
    pub(crate) memory: Memory,
    /// The dead letter that it comes from, if the broker did not deliver it.
    pub(crate) letter: Option<Arc<StoredDeadLetter>>,
}

/// Why a delivery is not taken for a message.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Refused {
    /// It does not look like one.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It looks like one, but came on a subject on which others are published.
    #[error(
        "headers say event `{event_type}`, which does not belong on the subject that the message came on: its sender may have no right \
         to publish this event; if a stream has subjects of another layout, tell the subscriber not to check them"
    )]
    Subject {
        /// The event type in the headers. The aggregate is left out, because it may be personal
        /// data.
        event_type: String,
    },
}

/// Which handler a message has.
#[derive(Debug, Clone)]
pub(crate) enum Route {
    /// This handler, which takes this version of the event, or one that it can be turned into.
    Handler {
        handler: Arc<Registration>,
        /// The version that the message must be turned into first.
        upcast_to: Option<u32>,
    },
    /// Handlers here take other versions of this event type only.
    UnknownVersion,
    /// No handler here takes this event type. Whether others do is not known yet.
    NotWanted,
    /// No handler here takes this event type, and another program has asked for it under the
    /// consumer's name.
    UnknownEvent,
    /// It is no message of an outbox.
    Unreadable,
}

/// What is remembered of a message while it is in this process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    /// It may have failed before, perhaps with its process: an attempt is counted before it runs.
    pub(crate) count_first: bool,
    /// The number of an attempt that is counted and has not run.
    pub(crate) counted: Option<u32>,
    /// Times in a row that the database was in trouble.
    pub(crate) database_failures: u32,
    /// Runs that a conflict or a lost connection has ended.
    pub(crate) interruptions: u32,
    /// Times that handling it panicked, if it is no message. Those of a message are attempts.
    pub(crate) panics: u32,
    /// Its handler asked for another run at a later time, so it runs by itself.
    pub(crate) deferred: bool,
    /// Its dead letter was taken for this process.
    pub(crate) begun: bool,
    /// It waits for those before it in its aggregate.
    pub(crate) early: Option<Early>,
}

impl Memory {
    /// What still holds of a message that goes back to the broker and comes again.
    pub(crate) fn sent_away(self) -> Self {
        Self {
            counted: None,
            begun: false,
            ..self
        }
    }

    /// Whether the database says something of the message that must be taken back if it does not
    /// run.
    pub(crate) fn is_recorded(&self) -> bool {
        self.counted.is_some() || self.begun
    }
}

/// A wait for messages that are missing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Early {
    /// The first number that is missing.
    pub(crate) expected: u64,
    pub(crate) since: Instant,
    /// The wait took too long, which was reported; or it is in vain, because the beginning of the
    /// aggregate has left the stream.
    pub(crate) expired: bool,
    /// Whether the beginning of the aggregate has left the stream is known, or the broker was
    /// asked.
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

    /// Whether it may have failed before, here or elsewhere.
    pub(crate) fn has_failed(&self) -> bool {
        let memory = &self.memory;
        memory.count_first || memory.deferred || memory.interruptions > 0 || self.letter.is_some()
    }

    /// The handler, if it has one.
    pub(crate) fn handler(&self) -> Option<&Registration> {
        match &self.route {
            Route::Handler { handler, .. } => Some(handler),
            _ => None,
        }
    }

    /// The handler, of a message that may share a transaction with others: nothing about it is in
    /// doubt.
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

/// When deliveries left for the broker. Empty until then.
pub(crate) type Left = Arc<OnceLock<Instant>>;
