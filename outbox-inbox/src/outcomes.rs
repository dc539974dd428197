//! Outcomes of past messages, page by page.

use outbox_core::EventId;
use outbox_sea_orm::TableNames;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr, Statement};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::dead_letter::{DeadLetterSelection, LetterPlace, ORDER, read_place, select_places};
use crate::dedup::sql::{DEAD, FAILED, InboxSql};

/// Outcome of an event at a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventOutcome {
    /// The event failed; a retry is pending.
    Failed,
    /// The event was handled in the first attempt. Only strategies with a row per event record this
    /// outcome.
    Handled,
    /// The event was handled after at least one failed attempt. Every strategy records this
    /// outcome.
    HandledLater,
    /// The event was dead-lettered.
    Dead,
}

/// Reads the outcomes of events in the inboxes of a database.
#[derive(Debug, Clone)]
pub struct EventOutcomes {
    db: DatabaseConnection,
    names: TableNames,
}

impl EventOutcomes {
    /// Uses the tables with the default names.
    #[must_use]
    pub fn new(db: DatabaseConnection) -> Self {
        Self {
            db,
            names: TableNames::default(),
        }
    }

    outbox_core::__setters! {
        /// Sets the names of the inbox tables. Default: [`TableNames::default`].
        fn with_names(names: TableNames);
    }

    /// Reads at most `limit` outcomes of a consumer, with event ids above `after` up to `last`, in
    /// id order: event ids begin with the time of recording. A page with fewer rows is the last
    /// page.
    ///
    /// # Errors
    ///
    /// The database's error, also if the table is missing.
    pub async fn page(
        &self,
        consumer: &str,
        after: EventId,
        last: EventId,
        limit: u32,
    ) -> Result<Vec<(EventId, EventOutcome)>, DbErr> {
        let inbox = self.sql();
        let rows = self
            .db
            .query_all_raw(outcomes(&inbox, consumer, (after, last), limit))
            .await?;
        rows.iter()
            .map(|row| {
                let outcome = match row.try_get::<i16>("", "status")? {
                    FAILED => EventOutcome::Failed,
                    DEAD => EventOutcome::Dead,
                    _ if row.try_get::<i32>("", "counted")? > 0 => EventOutcome::HandledLater,
                    _ => EventOutcome::Handled,
                };
                Ok((EventId::from(row.try_get::<Uuid>("", "id")?), outcome))
            })
            .collect()
    }

    /// As [`Self::page`], for dead letters of decoded messages, oldest first. Reads dead letters
    /// created at or after `since` and behind the position `after`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::page`].
    pub async fn dead_letters(
        &self,
        consumer: &str,
        since: OffsetDateTime,
        after: Option<LetterPlace>,
        limit: u32,
    ) -> Result<Vec<(LetterPlace, EventId)>, DbErr> {
        let selection = DeadLetterSelection {
            after,
            ..DeadLetterSelection::consumer(consumer).from(since)
        };
        let mut sql = select_places(&self.sql(), &selection);
        sql.push(" AND event_id IS NOT NULL").push(ORDER);
        sql.push(" LIMIT ").bind(i64::from(limit));
        let rows = self.db.query_all_raw(sql.statement()).await?;
        rows.iter()
            .map(|row| {
                Ok((
                    read_place(row)?,
                    EventId::from(row.try_get::<Uuid>("", "event_id")?),
                ))
            })
            .collect()
    }

    fn sql(&self) -> InboxSql {
        InboxSql::of(&self.db, &self.names)
    }
}

/// Reads a range of the primary key. An attempt that ended before the handler ran sets `last_error`
/// but does not increase `attempts`.
fn outcomes(inbox: &InboxSql, consumer: &str, (after, last): (EventId, EventId), limit: u32) -> Statement {
    let mut sql = inbox.sql(format!(
        "SELECT id, status, CASE WHEN last_error IS NULL THEN attempts ELSE attempts + 1 END AS counted FROM {} WHERE consumer = ",
        inbox.messages()
    ));
    sql.bind(inbox.key(consumer))
        .push(" AND id > ")
        .bind(after.as_uuid())
        .push(" AND id <= ")
        .bind(last.as_uuid())
        .push(" ORDER BY id LIMIT ")
        .bind(i64::from(limit));
    sql.statement()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::database::TestDb;

    fn event(number: u128) -> EventId {
        EventId::from(Uuid::from_u128(number))
    }

    async fn insert(test: &TestDb, consumer: &str, id: u128, status: i16) {
        insert_counted(test, consumer, id, status, (0, None)).await;
    }

    async fn insert_counted(
        test: &TestDb,
        consumer: &str,
        id: u128,
        status: i16,
        (attempts, error): (i32, Option<&str>),
    ) {
        let inbox = &test.sql;
        let now = inbox.now();
        let mut sql = inbox.sql(format!(
            "INSERT INTO {} (consumer, id, status, attempts, last_error, processed_at, expires_at) VALUES (",
            inbox.messages()
        ));
        sql.bind(inbox.key(consumer)).push(", ").bind(Uuid::from_u128(id));
        sql.push(&format!(", {status}, {attempts}, ")).bind(error);
        sql.push(&format!(", {now}, {now})"));
        test.db.execute_raw(sql.statement()).await.unwrap();
    }

    /// The headers are foreign.
    async fn insert_letter(test: &TestDb, id: u128, event_id: Option<u128>) {
        let inbox = &test.sql;
        let mut sql = inbox.sql(format!(
            "INSERT INTO {} (id, consumer, event_id, subject, stream_sequence, headers, payload, error, attempts, status, created_at) VALUES (",
            inbox.dead_letters()
        ));
        sql.bind(Uuid::from_u128(id))
            .push(", ")
            .bind(inbox.key("billing"));
        sql.push(", ").bind(event_id.map(Uuid::from_u128));
        sql.push(", 's', 1, '{}', ").bind(b"{}".to_vec());
        sql.push(&format!(", 'no price', 1, 0, {})", inbox.now()));
        test.db.execute_raw(sql.statement()).await.unwrap();
    }

    #[tokio::test]
    async fn outcome_pages_cover_a_range_of_one_consumer() {
        for test in TestDb::open_all().await {
            for (id, status) in [(1, 1), (2, 0), (3, 2), (4, 1), (5, 1), (6, 1)] {
                insert(&test, "billing", id, status).await;
            }
            insert(&test, "search", 3, 1).await;
            let outcomes = EventOutcomes::new(test.db.clone()).with_names(test.names.clone());
            let page = async |after, last| {
                outcomes
                    .page("billing", event(after), event(last), 3)
                    .await
                    .unwrap()
            };
            let (failed, handled, dead) = (EventOutcome::Failed, EventOutcome::Handled, EventOutcome::Dead);
            assert_eq!(
                page(1, 5).await,
                [(event(2), failed), (event(3), dead), (event(4), handled)]
            );
            assert_eq!(page(4, 5).await, [(event(5), handled)]);
            assert_eq!(page(5, 5).await, []);
            assert_eq!(outcomes.page("nobody", event(0), event(9), 3).await.unwrap(), []);
        }
    }

    #[tokio::test]
    async fn outcome_distinguishes_counted_attempts() {
        for test in TestDb::open_all().await {
            insert_counted(&test, "billing", 1, 1, (0, None)).await;
            insert_counted(&test, "billing", 2, 1, (1, None)).await;
            insert_counted(&test, "billing", 3, 1, (0, Some("unreadable"))).await;
            let outcomes = EventOutcomes::new(test.db.clone()).with_names(test.names.clone());
            let page = outcomes.page("billing", event(0), event(9), 9).await.unwrap();
            assert_eq!(
                page,
                [
                    (event(1), EventOutcome::Handled),
                    (event(2), EventOutcome::HandledLater),
                    (event(3), EventOutcome::HandledLater),
                ]
            );
        }
    }

    #[tokio::test]
    async fn dead_letter_pages_contain_messages_only() {
        for test in TestDb::open_all().await {
            let begin = OffsetDateTime::now_utc() - time::Duration::hours(1);
            for (id, event_id) in [(9, Some(1)), (8, Some(2)), (7, None), (6, Some(3)), (5, Some(4))] {
                insert_letter(&test, id, event_id).await;
            }
            let outcomes = EventOutcomes::new(test.db.clone()).with_names(test.names.clone());
            let (mut read, mut after) = (Vec::new(), None);
            loop {
                let page = outcomes.dead_letters("billing", begin, after, 3).await.unwrap();
                after = page.last().map(|(place, _)| *place);
                read.extend(page.iter().map(|(_, event)| *event));
                assert!(read.len() <= 4, "pages repeat letters: {read:?}");
                if page.len() < 3 {
                    break;
                }
            }
            read.sort();
            assert_eq!(read, [1, 2, 3, 4].map(event));
            let later = OffsetDateTime::now_utc() + time::Duration::hours(1);
            assert_eq!(
                outcomes.dead_letters("billing", later, None, 3).await.unwrap(),
                []
            );
        }
    }
}
