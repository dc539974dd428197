//! The inputs of one handler call: messages, transaction, application state.
//!
//! Invariant: the connection pool is not included, so no effect can bypass the transaction.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use outbox_core::Message;
use outbox_sea_orm::OutboxConfig;
use sea_orm::DatabaseTransaction;

use super::recording::Recorded;

/// The source of all extractor values; see [`FromContext`](crate::FromContext).
#[derive(Clone, Copy)]
pub struct HandlerContext<'a> {
    /// Messages of the call, at least one.
    pub(crate) messages: &'a [Arc<Message>],
    pub(crate) consumer: &'static str,
    pub(crate) attempt: u32,
    pub(crate) transaction: Option<&'a DatabaseTransaction>,
    pub(crate) outbox: &'a OutboxConfig,
    pub(crate) recorded: &'a Recorded,
    pub(crate) state: &'a StateMap,
}

impl<'a> HandlerContext<'a> {
    /// The message of the call; in a batch, the first message.
    #[must_use]
    pub fn message(&self) -> &'a Message {
        &self.messages[0]
    }

    /// The messages of the call: exactly one, unless the handler takes `Vec<Event<T>>`.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &'a Message> + use<'a> {
        self.messages.iter().map(|message| &**message)
    }

    /// Name of the consumer.
    #[must_use]
    pub fn consumer(&self) -> &'static str {
        self.consumer
    }

    /// Number of this attempt, from 1. An attempt that ended with the process may be uncounted.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The transaction of the inbox row. With the strategies `natural` and `external` it is `None`,
    /// unless an argument is [`FromContext::TRANSACTIONAL`](crate::FromContext::TRANSACTIONAL).
    #[must_use]
    pub fn transaction(&self) -> Option<&'a DatabaseTransaction> {
        self.recorded.doubt();
        self.transaction
    }

    /// A value from [`Inbox::with_state`](crate::Inbox::with_state).
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.state.get()
    }
}

impl fmt::Debug for HandlerContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerContext")
            .field("consumer", &self.consumer)
            .field("event_id", &self.message().event_id)
            .field("messages", &self.messages.len())
            .field("event_type", &self.message().event_type)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// The application's state, one value per type.
#[derive(Clone, Default)]
pub struct StateMap(HashMap<TypeId, (Arc<dyn Any + Send + Sync>, &'static str)>);

impl StateMap {
    /// An empty map.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value. Replaces a value of the same type.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0
            .insert(TypeId::of::<T>(), (Arc::new(value), std::any::type_name::<T>()));
    }

    /// The value of a type.
    #[must_use]
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0
            .get(&TypeId::of::<T>())
            .and_then(|(value, _)| value.clone().downcast().ok())
    }

    pub(crate) fn contains(&self, id: TypeId) -> bool {
        self.0.contains_key(&id)
    }
}

impl fmt::Debug for StateMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.0.values().map(|(_, name)| name))
            .finish()
    }
}
