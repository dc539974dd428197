//! The handlers' transactions without an inbox: the baseline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sea_orm::TransactionTrait as _;
use tokio::task::JoinSet;

use super::{credit, effects, tables};
use crate::load::{AGGREGATES, account_id};
use crate::raw::per_second;
use crate::servers::Servers;
use crate::{Failure, Result, check};

pub(super) async fn rate(servers: &Servers, tasks: usize, transactions: u64) -> Result<f64> {
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
    db.close().await?;
    schema.remove().await?;
    Ok(rate)
}
