//! Sequences that consumers have reached in an aggregate (strategy `sequence`).

use outbox_core::Aggregate;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};

use crate::columns::{read_consumer, read_name};
use crate::dedup::sql::InboxSql;

/// Position of a consumer with strategy `sequence` in an aggregate: a row of `inbox_sequences`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AggregatePosition {
    /// Name of the consumer.
    pub consumer: String,
    /// The service that numbers the events (`ce-source`); empty if the messages have none.
    pub source: String,
    /// Last sequence that was handled, or skipped as a reported gap; 0 if there is none.
    pub last: u64,
    /// Sequence after [`Self::last`] of a message that is being retried. `None` if no process has
    /// renewed this entry for a day.
    pub failing: Option<u64>,
}

const CONSUMERS_MAX: usize = 100;

const ROWS_MAX: i64 = 1_000;

pub(super) async fn positions(
    db: &DatabaseConnection,
    inbox: &InboxSql,
    consumers: &[String],
    aggregate: &Aggregate,
) -> Result<Vec<AggregatePosition>, DbErr> {
    let mut positions = Vec::new();
    for consumers in consumers.chunks(CONSUMERS_MAX) {
        let mut sql = inbox.sql(format!(
            "SELECT consumer, source, last_sequence, CASE WHEN {} THEN NULL ELSE failing END AS failing FROM {} WHERE consumer IN ",
            inbox.is_forgotten(),
            inbox.sequences()
        ));
        sql.bind_rows([consumers.iter().map(|consumer| inbox.key(consumer))]);
        sql.push(" AND aggregate_type = ")
            .bind(inbox.key(&aggregate.aggregate_type));
        sql.push(" AND aggregate_id = ").bind(inbox.key(&aggregate.id));
        sql.push(" ORDER BY consumer, source LIMIT ").bind(ROWS_MAX);
        for row in db.query_all_raw(sql.statement()).await? {
            positions.push(AggregatePosition {
                consumer: read_consumer(&row, inbox.backend())?,
                source: read_name(&row, inbox.backend(), "source")?.unwrap_or_default(),
                last: row.try_get::<i64>("", "last_sequence")?.cast_unsigned(),
                failing: row.try_get::<Option<i64>>("", "failing")?.map(i64::cast_unsigned),
            });
        }
    }
    Ok(positions)
}

#[cfg(test)]
mod tests {
    use sea_orm::DbBackend;

    use super::*;
    use crate::tests::database::TestDb;

    async fn insert(
        test: &TestDb,
        (consumer, order, source): (&str, &str, &str),
        last: i64,
        failing: Option<i64>,
    ) {
        let inbox = &test.sql;
        let mut sql = inbox.sql(format!(
            "INSERT INTO {} (consumer, aggregate_type, aggregate_id, source, last_sequence, last_recorded_at, failing, updated_at) VALUES (",
            inbox.sequences()
        ));
        sql.bind(inbox.key(consumer));
        for text in ["order", order, source] {
            sql.push(", ").bind(inbox.key(text));
        }
        sql.push(", ").bind(last).push(", 0, ").bind(failing);
        sql.push(&format!(", {})", inbox.now()));
        test.db.execute_raw(sql.statement()).await.unwrap();
    }

    async fn read(test: &TestDb, consumers: &[&str]) -> Vec<(String, String, u64, Option<u64>)> {
        let consumers: Vec<String> = consumers.iter().map(|&name| name.to_owned()).collect();
        let found = positions(&test.db, &test.sql, &consumers, &Aggregate::new("order", "1")).await;
        let found = found.unwrap().into_iter();
        found
            .map(|found| (found.consumer, found.source, found.last, found.failing))
            .collect()
    }

    #[tokio::test]
    async fn positions_are_read_by_consumer_aggregate_and_source() {
        for test in TestDb::open_all().await {
            insert(&test, ("books", "1", "shop"), 4, None).await;
            insert(&test, ("books", "1", "till"), 9, Some(11)).await;
            insert(&test, ("books", "2", "shop"), 7, None).await;
            insert(&test, ("Books", "1", "shop"), 8, None).await;
            insert(&test, ("search", "1", ""), 0, Some(1)).await;
            let of = |consumer: &str, source: &str, last: u64, failing: Option<u64>| {
                (consumer.to_owned(), source.to_owned(), last, failing)
            };
            assert_eq!(
                read(&test, &["search", "books", "billing"]).await,
                [
                    of("books", "shop", 4, None),
                    of("books", "till", 9, Some(11)),
                    of("search", "", 0, Some(1)),
                ]
            );
            assert_eq!(read(&test, &["billing"]).await, []);
            assert_eq!(read(&test, &[]).await, []);
        }
    }

    #[tokio::test]
    async fn expired_failing_mark_is_ignored() {
        for test in TestDb::open_all().await {
            insert(&test, ("books", "1", "shop"), 4, Some(6)).await;
            let yesterday = match test.sql.backend() {
                DbBackend::Postgres => "updated_at - interval '25 hours'",
                DbBackend::MySql => "TIMESTAMPADD(HOUR, -25, updated_at)",
                _ => "updated_at - 25 * 3600000000",
            };
            let age = format!("UPDATE {} SET updated_at = {yesterday}", test.sql.sequences());
            test.db.execute_unprepared(&age).await.unwrap();
            let expected = ("books".to_owned(), "shop".to_owned(), 4, None);
            assert_eq!(read(&test, &["books"]).await, [expected]);
        }
    }
}
