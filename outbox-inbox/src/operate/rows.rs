//! Reads rows of consumers, without locks.

use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};

use crate::columns::read_count;
use crate::dedup::sql::InboxSql;

/// Upper bound of the dead letters counted per consumer.
pub const DEAD_LETTERS_COUNT_MAX: u64 = 10_000;

const CONSUMERS_MAX: usize = 100;

pub(super) async fn letters(
    db: &DatabaseConnection,
    inbox: &InboxSql,
    consumers: &[String],
) -> Result<Vec<(u64, u64)>, DbErr> {
    let mut letters = vec![(0, 0); consumers.len()];
    for (chunk, letters) in consumers
        .chunks(CONSUMERS_MAX)
        .zip(letters.chunks_mut(CONSUMERS_MAX))
    {
        let mut sql = inbox.sql(String::new());
        for (place, consumer) in chunk.iter().enumerate() {
            let all = if place == 0 { "" } else { " UNION ALL " };
            sql.push(&format!(
                "{all}SELECT {place} AS place, status, count(*) AS letters FROM (SELECT status FROM {} WHERE consumer = ",
                inbox.dead_letters()
            ));
            sql.bind(inbox.key(consumer)).push(&format!(
                " LIMIT {DEAD_LETTERS_COUNT_MAX}) AS first_ones_{place} GROUP BY status"
            ));
        }
        for row in db.query_all_raw(sql.statement()).await? {
            let place = usize::try_from(row.try_get::<i32>("", "place")?).unwrap_or_default();
            let count = read_count(&row, "letters")?;
            if let Some((open, marked)) = letters.get_mut(place) {
                match row.try_get::<i16>("", "status")? {
                    0 => *open = count,
                    _ => *marked += count,
                }
            }
        }
    }
    Ok(letters)
}

pub(super) async fn of_any(
    db: &DatabaseConnection,
    inbox: &InboxSql,
    consumers: &[String],
) -> Result<Vec<bool>, DbErr> {
    let tables = [
        inbox.messages(),
        inbox.sequences(),
        inbox.dead_letters(),
        inbox.pauses(),
    ];
    let mut has_rows = vec![false; consumers.len()];
    for (chunk, has_rows) in consumers
        .chunks(CONSUMERS_MAX)
        .zip(has_rows.chunks_mut(CONSUMERS_MAX))
    {
        let mut sql = inbox.sql(String::new());
        for (place, consumer) in chunk.iter().enumerate() {
            let all = if place == 0 { "" } else { " UNION ALL " };
            sql.push(&format!(
                "{all}SELECT {place} AS place FROM (SELECT 1 AS one) x{place} WHERE"
            ));
            for (number, table) in tables.iter().enumerate() {
                let or = if number == 0 { "" } else { " OR" };
                sql.push(&format!("{or} EXISTS (SELECT 1 FROM {table} WHERE consumer = "));
                sql.bind(inbox.key(consumer)).push(")");
            }
        }
        for row in db.query_all_raw(sql.statement()).await? {
            let place = usize::try_from(row.try_get::<i32>("", "place")?).unwrap_or_default();
            if let Some(has_rows) = has_rows.get_mut(place) {
                *has_rows = true;
            }
        }
    }
    Ok(has_rows)
}
