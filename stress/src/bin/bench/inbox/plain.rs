//! The handlers' transactions without an inbox: the baseline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement, TransactionTrait as _};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{credit, effects, tables};
use crate::load::{AGGREGATES, account_id};
use crate::raw::per_second;
use crate::servers::{Servers, count};
use crate::{Failure, Result, check};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum First {
    Nothing,
    InboxRow,
}

pub(super) async fn rate(servers: &Servers, tasks: usize, transactions: u64, first: First) -> Result<f64> {
    let schema = tables(servers).await?;
    let db = schema.pool(u32::try_from(tasks)?).await?;
    let next = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (db, next) = (db.clone(), next.clone());
        running.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= transactions {
                    return Ok::<_, Failure>(());
                }
                let tx = db.begin().await?;
                if first == First::InboxRow {
                    insert_row(&tx).await?;
                }
                credit(&tx, account_id(n % AGGREGATES)).await?;
                tx.commit().await?;
            }
        });
    }
    for ended in running.join_all().await {
        ended?;
    }
    let rate = per_second(transactions, start.elapsed());
    check("effects", effects(&schema).await?, transactions)?;
    let rows = count(&schema.db, "SELECT count(*) AS n FROM inbox_messages").await?;
    let expected = if first == First::InboxRow { transactions } else { 0 };
    check("inbox rows", rows, expected)?;
    db.close().await?;
    schema.remove().await?;
    Ok(rate)
}

async fn insert_row<C: ConnectionTrait>(db: &C) -> Result<(), DbErr> {
    let sql = "INSERT INTO inbox_messages (consumer, id, status, attempts, last_error, processed_at, expires_at) \
               VALUES ($1, $2, 1, 0, NULL, clock_timestamp(), clock_timestamp() + $3::int8 * interval '1 second') \
               ON CONFLICT DO NOTHING";
    let values = ["one".into(), Uuid::now_v7().into(), 1_209_600_i64.into()];
    db.execute_raw(Statement::from_sql_and_values(DbBackend::Postgres, sql, values))
        .await?;
    Ok(())
}
