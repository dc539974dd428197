//! Consumer lag for operators. Read-only.

pub(crate) mod interval;
mod positions;
mod rows;
pub(crate) mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox_core::{Aggregate, ConsumerStanding, Subscriber, SubscriberError};
use outbox_sea_orm::TableNames;
use sea_orm::{DatabaseConnection, DbErr};

use crate::dedup::sql::InboxSql;
use crate::pauses::PausedConsumers;

pub use positions::AggregatePosition;
pub use rows::DEAD_LETTERS_COUNT_MAX;

const NAME_MAX: usize = 64;

/// The consumers of a database and a stream, for operators.
///
/// ```
/// use outbox_inbox::{Consumers, ConsumersError};
/// use outbox_testing::MemoryBroker;
///
/// async fn show(
///     db: sea_orm::DatabaseConnection,
///     broker: MemoryBroker,
/// ) -> Result<(), ConsumersError> {
///     let consumers = Consumers::new(db, broker.subscriber());
///     println!("{:?}", consumers.lag("search").await?);
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Consumers<S> {
    db: DatabaseConnection,
    subscriber: Arc<S>,
    names: TableNames,
}

/// Lag of a consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerLag {
    /// Position of the consumer on the stream; `None` if the broker has no consumer of this name.
    pub on_stream: Option<ConsumerStanding>,
    /// Number of open dead letters, counted up to 10,000.
    pub dead_letters_open: u64,
    /// Number of dead letters marked for retry. Marked and open dead letters together are counted
    /// up to 10,000.
    pub dead_letters_marked: u64,
    /// Reason of the consumer's pause, if it is paused.
    pub paused: Option<String>,
    /// Whether an inbox table of this database contains a row of the consumer.
    pub has_rows: bool,
}

/// Why a consumer could not be inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumersError {
    /// The database's error. Call again.
    #[error(transparent)]
    Database(#[from] DbErr),
    /// The broker's error. After [`SubscriberError::Interrupted`], call again.
    #[error(transparent)]
    Subscriber(#[from] SubscriberError),
    /// The name is not a valid consumer name.
    #[error("`{}` is no consumer name; use 1 to 64 characters of `[A-Za-z0-9_-]`", beginning(.0))]
    Name(String),
}

impl<S: Subscriber> Consumers<S> {
    /// Uses the tables with the default names.
    pub fn new(db: DatabaseConnection, subscriber: S) -> Self {
        Self {
            db,
            subscriber: Arc::new(subscriber),
            names: TableNames::default(),
        }
    }

    outbox_core::__setters! {
        /// Sets the names of the inbox tables. Default: [`TableNames::default`].
        fn with_names(names: TableNames);
    }

    /// Returns the lag of a consumer.
    ///
    /// # Errors
    ///
    /// The broker's or the database's error; [`ConsumersError::Name`].
    pub async fn lag(&self, consumer: &str) -> Result<ConsumerLag, ConsumersError> {
        check_consumer_name(consumer)?;
        let mut lags = self
            .lags_of([consumer.to_owned()].into(), self.pauses().await?)
            .await?;
        Ok(lags.remove(consumer).unwrap_or_default())
    }

    /// Returns the position of a consumer on the stream; `None` if the broker has no consumer of
    /// this name.
    ///
    /// # Errors
    ///
    /// The broker's error; [`ConsumersError::Name`].
    pub async fn standing(&self, consumer: &str) -> Result<Option<ConsumerStanding>, ConsumersError> {
        check_consumer_name(consumer)?;
        Ok(self.subscriber.standing(consumer).await?)
    }

    /// As [`Self::lag`], for the given consumers and all paused consumers, sorted by name. Runs
    /// always three database queries.
    ///
    /// # Errors
    ///
    /// The broker's or the database's error; [`ConsumersError::Name`].
    pub async fn lags(
        &self,
        consumers: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<BTreeMap<String, ConsumerLag>, ConsumersError> {
        let pauses = self.pauses().await?;
        let mut names: BTreeSet<String> = consumers.into_iter().map(Into::into).collect();
        names.extend(pauses.keys().cloned());
        for name in &names {
            check_consumer_name(name)?;
        }
        self.lags_of(names, pauses).await
    }

    async fn lags_of(
        &self,
        names: BTreeSet<String>,
        mut pauses: BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, ConsumerLag>, ConsumersError> {
        let names: Vec<String> = names.into_iter().collect();
        let letters = rows::letters(&self.db, &self.sql(), &names).await?;
        let rows = rows::of_any(&self.db, &self.sql(), &names).await?;
        let mut lags = BTreeMap::new();
        for ((name, (dead_letters_open, dead_letters_marked)), has_rows) in
            names.into_iter().zip(letters).zip(rows)
        {
            let lag = ConsumerLag {
                on_stream: self.subscriber.standing(&name).await?,
                dead_letters_open,
                dead_letters_marked,
                paused: pauses.remove(&name),
                has_rows,
            };
            lags.insert(name, lag);
        }
        Ok(lags)
    }

    async fn pauses(&self) -> Result<BTreeMap<String, String>, DbErr> {
        let paused = PausedConsumers::new(self.db.clone()).with_names(self.names.clone());
        let paused = paused.list().await?.into_iter();
        Ok(paused.map(|paused| (paused.consumer, paused.reason)).collect())
    }

    /// Reads the last handled sequence of an aggregate per consumer and source, at most 1,000 rows.
    /// The result omits consumers without a row. The query takes no locks.
    ///
    /// # Errors
    ///
    /// The database's error, also if the table is missing.
    ///
    /// # Cancellation
    ///
    /// The query only reads; the future can be dropped at any time.
    pub async fn positions(
        &self,
        consumers: &[String],
        aggregate: &Aggregate,
    ) -> Result<Vec<AggregatePosition>, DbErr> {
        positions::positions(&self.db, &self.sql(), consumers, aggregate).await
    }

    fn sql(&self) -> InboxSql {
        InboxSql::of(&self.db, &self.names)
    }
}

/// Validates a consumer name: 1 to 64 characters of `[A-Za-z0-9_-]`. No I/O.
///
/// # Errors
///
/// [`ConsumersError::Name`].
pub fn check_consumer_name(consumer: &str) -> Result<(), ConsumersError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if consumer.is_empty() || consumer.len() > NAME_MAX || !consumer.bytes().all(is_plain) {
        return Err(ConsumersError::Name(consumer.to_owned()));
    }
    Ok(())
}

fn beginning(name: &str) -> String {
    match name.char_indices().nth(NAME_MAX) {
        Some((end, _)) => format!("{}…", name[..end].escape_debug()),
        None => name.escape_debug().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_wrong_name_is_shortened() {
        let said = |name: &str| check_consumer_name(name).unwrap_err().to_string();
        assert!(said("no\u{1b}name").starts_with("`no\\u{1b}name` is no consumer name"));
        let long = format!("`{}…` is no consumer name", "\u{e9}".repeat(NAME_MAX));
        assert!(said(&"\u{e9}".repeat(NAME_MAX + 1)).starts_with(&long));
        assert!(check_consumer_name(&"a".repeat(NAME_MAX)).is_ok());
    }
}
