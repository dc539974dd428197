//! One consumer of a running inbox: what it handles, and what all its deliveries share.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use outbox_core::{ConsumerSpec, EventDescriptor, Message};
use outbox_sea_orm::OutboxConfig;
use tokio_util::sync::CancellationToken;

use super::report::Tally;
use crate::config::InboxConfig;
use crate::database::Database;
use crate::dedup::message_id::ByMessageId;
use crate::dedup::sql::InboxSql;
use crate::handler::{Registration, StateMap};

/// What all consumers of an inbox share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) database: Database,
    pub(crate) sql: InboxSql,
    pub(crate) state: StateMap,
    pub(crate) outbox: OutboxConfig,
    pub(crate) config: InboxConfig,
    pub(crate) tally: Tally,
}

/// How far a shutdown is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    /// Start nothing any more.
    pub(crate) soft: CancellationToken,
    /// Cancel what is running.
    pub(crate) hard: CancellationToken,
}

/// A consumer and its handlers.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) name: &'static str,
    pub(crate) shared: std::sync::Arc<Shared>,
    /// By event type and version.
    handlers: HashMap<String, BTreeMap<u32, Registration>>,
    events: Vec<&'static EventDescriptor>,
}

/// Which handler a message has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Route {
    Handler(Registration),
    /// Another version of the event type has one.
    UnknownVersion,
    /// The consumer does not want this event type; filters of old servers are wider than asked for.
    NotWanted,
}

impl Consumer {
    /// A consumer with checked handlers: no two of them want the same event.
    pub(crate) fn new(name: &'static str, handlers: &[Registration], shared: std::sync::Arc<Shared>) -> Self {
        let own = handlers.iter().filter(|handler| handler.consumer == name);
        let mut consumer = Self {
            name,
            shared,
            handlers: HashMap::new(),
            events: Vec::new(),
        };
        for handler in own {
            for event in handler.events {
                consumer
                    .handlers
                    .entry(event.event_type())
                    .or_default()
                    .insert(event.version, *handler);
                consumer.events.push(event);
            }
        }
        consumer
    }

    pub(crate) fn spec(&self) -> ConsumerSpec {
        ConsumerSpec {
            name: self.name.to_owned(),
            events: self.events.clone(),
            ack_wait: self.shared.config.ack_wait,
            in_flight_max: self.shared.config.in_flight_max,
        }
    }

    pub(super) fn route(&self, message: &Message) -> Route {
        match self.handlers.get(&message.event_type) {
            None => Route::NotWanted,
            Some(versions) => versions
                .get(&message.event_version)
                .map_or(Route::UnknownVersion, |handler| Route::Handler(*handler)),
        }
    }

    pub(super) fn dedup(&self, message: &Message) -> ByMessageId<'_> {
        ByMessageId {
            sql: &self.shared.sql,
            database: &self.shared.database,
            consumer: self.name,
            message_id: outbox_core::MessageId::from(message.event_id.as_uuid()),
            attempts_max: self.shared.config.attempts_max,
            run_max: self.shared.config.handler_timeout,
        }
    }

    /// How often a delivery in memory tells the broker that it is not forgotten.
    pub(super) fn progress_interval(&self) -> Duration {
        self.shared.config.ack_wait / 3
    }
}
