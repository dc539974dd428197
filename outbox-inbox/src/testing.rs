//! Test helpers for handlers (feature `testing`), without a broker.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::codec;
use outbox_core::{
    DedupStore, DomainEvent, EventError, EventId, Incoming, Limits, Message, NewMessage, StartAt,
};
use outbox_sea_orm::{OutboxConfig, TableNames};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::config::InboxConfig;
use crate::database::Database;
use crate::dead_letter::{DeadLetter, DeadLetterSelection, DeadLetters};
use crate::dedup::sql::InboxSql;
use crate::dedup::{Outcome as Internal, Retry};
use crate::handler::Handler;
use crate::router::Router;
use crate::runtime::{Consumer, HandlerServices, Shared, Stop, Tally, handle};
use crate::start_error::StartError;
use crate::upcast::Upcasters;

/// Returns the ids of the events that a consumer has handled, oldest first.
///
/// # Errors
///
/// The database's error.
pub async fn handled(db: &DatabaseConnection, consumer: &str) -> Result<Vec<EventId>, DbErr> {
    let sql = InboxSql::of(db, &TableNames::default());
    let rows = db.query_all_raw(sql.handled(consumer)).await?;
    rows.iter()
        .map(|row| row.try_get::<Uuid>("", "id").map(EventId::from))
        .collect()
}

/// Returns the dead letters of a consumer, oldest first, at most 1,000. For other table names see
/// [`DeadLetters`].
///
/// # Errors
///
/// The errors of [`DeadLetters::list`].
pub async fn dead_letters(db: &DatabaseConnection, consumer: &str) -> Result<Vec<DeadLetter>, DbErr> {
    DeadLetters::new(db.clone())
        .list(&DeadLetterSelection::consumer(consumer), 1000)
        .await
}

/// Outcome of a delivery by a [`Harness`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler succeeded.
    Handled,
    /// The message was handled or dead-lettered before.
    Duplicate,
    /// The handler failed.
    Failed,
    /// The handler requested a retry after this time
    /// ([`HandlerError::retry_after`](crate::HandlerError::retry_after)).
    Deferred(Duration),
    /// The message waits: it runs in another process, earlier messages are missing, or its version
    /// has no handler.
    Later,
    /// The message was dead-lettered.
    DeadLettered,
    /// The handler does not handle this event.
    Skipped,
}

/// Why a [`Harness`] could not deliver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HarnessError {
    /// The handler cannot run, for example because its state is missing.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The event cannot be encoded as a message.
    #[error("event cannot be recorded")]
    Event(#[from] EventError),
    /// The database failed.
    #[error("database failed")]
    Database(#[from] DbErr),
}

/// Delivers messages to single handlers.
///
/// ```
/// # use outbox_core::DomainEvent;
/// # use outbox_inbox::{Event, HandlerError, HandlerState, idempotent_handler};
/// # #[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
/// # #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// # struct Greeting(&'static str);
/// # #[idempotent_handler(consumer = "greeter")]
/// # async fn greet(
/// #     event: Event<OrderPlaced>, greeting: HandlerState<Greeting>
/// # ) -> Result<(), HandlerError> { Ok(()) }
/// use outbox_inbox::testing::{Harness, Outcome};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut options = sea_orm::ConnectOptions::new("sqlite::memory:");
/// # options.max_connections(1);
/// # let db = sea_orm::Database::connect(options).await?;
/// outbox_inbox::migrate(&db).await?;
/// let harness = Harness::new(db).with_state(Greeting("hello"));
/// let message = harness.message(&OrderPlaced { order_id: 7 })?;
/// assert_eq!(harness.deliver_message::<greet>(&message).await?, Outcome::Handled);
/// assert_eq!(harness.deliver_message::<greet>(&message).await?, Outcome::Duplicate);
/// # Ok(())
/// # }
/// ```
pub struct Harness {
    db: DatabaseConnection,
    services: HandlerServices,
    config: InboxConfig,
    names: TableNames,
}

impl std::fmt::Debug for Harness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Harness")
            .field("state", &self.services.state)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Harness {
    /// Creates a harness over a database with the inbox tables. Follow-up events also need the
    /// outbox tables.
    #[must_use]
    pub fn new(db: DatabaseConnection) -> Self {
        Self {
            db,
            services: HandlerServices::default(),
            config: InboxConfig::default(),
            names: TableNames::default(),
        }
    }

    /// Provides a value for [`HandlerState<T>`](crate::HandlerState) arguments.
    #[must_use]
    pub fn with_state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.services.state.insert(value);
        self
    }

    outbox_core::__setters! {
        /// Replaces the configuration. Default: [`InboxConfig::default`].
        fn with_config(config: InboxConfig);
        /// Sets the table and limits for follow-up events. Default: [`OutboxConfig::default`].
        fn with_outbox(outbox: OutboxConfig, in services);
        /// Sets the names of the inbox tables. Default: [`TableNames::default`].
        fn with_names(names: TableNames);
        /// Sets the conversions of older event versions. Default: none.
        fn with_upcasters(upcasters: Upcasters, in services);
    }

    /// Sets the deduplication store for the strategy [`external`](crate::Strategy::External).
    #[must_use]
    pub fn with_dedup_store(mut self, store: impl DedupStore) -> Self {
        self.services.store = Some(Arc::new(store));
        self
    }

    /// Creates the message of an event, with a new id. Deliver it twice to test a duplicate.
    ///
    /// # Errors
    ///
    /// [`EventError`], as for a recorded event.
    pub fn message<E: DomainEvent>(&self, event: &E) -> Result<Message, EventError> {
        let message = NewMessage::from_event(event)?;
        message.check(&Limits::default())?;
        let sequence = message.is_sequenced().then_some(1);
        Ok(message.into_message(sequence, OffsetDateTime::now_utc()))
    }

    /// Delivers an event as a new message.
    ///
    /// # Errors
    ///
    /// [`HarnessError`]. A failing handler is an [`Outcome`].
    pub async fn deliver<H: Handler>(&self, event: &impl DomainEvent) -> Result<Outcome, HarnessError> {
        self.deliver_message::<H>(&self.message(event)?).await
    }

    /// Delivers a message with a delivery count of 1.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::deliver`].
    pub async fn deliver_message<H: Handler>(&self, message: &Message) -> Result<Outcome, HarnessError> {
        self.redeliver_message::<H>(message, 1).await
    }

    /// Delivers a message with the given delivery count.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::deliver`].
    pub async fn redeliver_message<H: Handler>(
        &self,
        message: &Message,
        delivery_count: u64,
    ) -> Result<Outcome, HarnessError> {
        let (headers, payload) = codec::encode(message, "test").received();
        let subject = format!("events.{}", message.event_type);
        self.deliver_raw::<H>(Incoming {
            subject,
            headers,
            payload,
            delivery_count,
            stream_sequence: 1,
        })
        .await
    }

    /// Delivers arbitrary headers and bytes.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::deliver`].
    pub async fn deliver_raw<H: Handler>(&self, incoming: Incoming) -> Result<Outcome, HarnessError> {
        let router = Router::new().handler::<H>();
        router.check(&self.services.state)?;
        let database = Database::inspect(self.db.clone()).await?;
        let sql = InboxSql::new(self.db.get_database_backend(), &self.names, self.config.retention);
        let shared = Shared {
            sql: sql.limited(database.lock_limit()),
            database,
            services: self.services.clone(),
            config: self.config.clone(),
            tally: Tally::default(),
            belongs: Arc::new(|_, _, _| true),
        };
        let consumer = Consumer::new(
            H::REGISTRATION.consumer,
            router.handlers(),
            Arc::new(shared),
            StartAt::default(),
        );
        let outcome = outbox_sea_orm::detached(async move {
            let (mut routed, stop) = (consumer.routed(&incoming), Stop::default());
            loop {
                let database_failures = routed.memory.database_failures;
                let outcome = handle(&consumer, &incoming, &mut routed, &stop, None).await;
                if routed.memory.database_failures == database_failures
                    || outcome.retry() != Some(Retry::Postponed)
                {
                    break outcome;
                }
                tokio::time::sleep(outcome.after()).await;
            }
        });
        let outcome = outcome.await;
        Ok(match (&outcome, outcome.retry()) {
            (Internal::Handled, _) => Outcome::Handled,
            (Internal::Duplicate | Internal::Buried, _) => Outcome::Duplicate,
            (Internal::DeadLettered, _) => Outcome::DeadLettered,
            (Internal::Skipped, _) => Outcome::Skipped,
            (_, Some(Retry::Deferred)) => Outcome::Deferred(outcome.after()),
            (Internal::SentBack { .. }, _) | (_, Some(Retry::Postponed | Retry::Early { .. })) => {
                Outcome::Later
            }
            _ => Outcome::Failed,
        })
    }
}
