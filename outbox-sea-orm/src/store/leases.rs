//! Partition leases: the only place where relays compete.
//!
//! Invariant: `epoch` rises with each acquisition, under the row's lock. A crash anywhere here leaves at most a lease that
//! nobody uses and that runs out.

use std::time::Duration;

use outbox_core::{Lease, OwnerId};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr, QueryResult};

use super::begin;
#[cfg(feature = "postgres")]
use crate::dialect::postgres;
use crate::dialect::{Dialect, mysql, sqlite, unsupported};

pub(super) async fn acquire(
    db: &DatabaseConnection,
    dialect: &Dialect,
    owner: OwnerId,
    ttl: Duration,
    max: u16,
) -> Result<Vec<Lease>, DbErr> {
    let (owner, ttl) = (owner.as_uuid(), micros(ttl));
    let mut leases = match dialect.backend {
        #[cfg(feature = "postgres")]
        DbBackend::Postgres => read(
            &db.query_all_raw(postgres::acquire(dialect, owner, ttl, max))
                .await?,
        )?,
        DbBackend::MySql => {
            let tx = begin(db).await?;
            let mut leases = read(&tx.query_all_raw(mysql::lock_free_leases(dialect, max)).await?)?;
            if !leases.is_empty() {
                tx.execute_raw(mysql::take_leases(dialect, owner, ttl, &partitions(&leases)))
                    .await?;
            }
            tx.commit().await?;
            leases.iter_mut().for_each(|lease| lease.epoch += 1);
            leases
        }
        DbBackend::Sqlite => read(
            &db.query_all_raw(sqlite::acquire(dialect, owner, ttl, max))
                .await?,
        )?,
        backend => return Err(unsupported(backend)),
    };
    leases.sort_by_key(|lease| lease.partition);
    Ok(leases)
}

pub(super) async fn renew(
    db: &DatabaseConnection,
    dialect: &Dialect,
    owner: OwnerId,
    leases: &[Lease],
    ttl: Duration,
) -> Result<Vec<Lease>, DbErr> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let tx = begin(db).await?;
    let rows = tx
        .query_all_raw(dialect.lock_held_leases(owner.as_uuid(), &partitions(leases)))
        .await?;
    let held: Vec<Lease> = read(&rows)?
        .into_iter()
        .filter(|lease| leases.contains(lease))
        .collect();
    if !held.is_empty() {
        tx.execute_raw(dialect.extend_leases(micros(ttl), &partitions(&held)))
            .await?;
    }
    tx.commit().await?;
    Ok(held)
}

pub(super) async fn release(
    db: &DatabaseConnection,
    dialect: &Dialect,
    owner: OwnerId,
    leases: &[Lease],
) -> Result<(), DbErr> {
    let mut leases = leases.to_vec();
    leases.sort_by_key(|lease| lease.partition);
    let tx = begin(db).await?;
    for lease in leases {
        tx.execute_raw(dialect.release(owner.as_uuid(), i64::from(lease.partition), lease.epoch))
            .await?;
    }
    tx.commit().await
}

/// Leases from rows with `partition_no` and `epoch`.
pub(super) fn read(rows: &[QueryResult]) -> Result<Vec<Lease>, DbErr> {
    rows.iter()
        .map(|row| {
            let partition: i64 = row.try_get("", "partition_no")?;
            let partition = u16::try_from(partition)
                .map_err(|_| DbErr::Type(format!("partition {partition} of a lease is out of range")))?;
            Ok(Lease {
                partition,
                epoch: row.try_get("", "epoch")?,
            })
        })
        .collect()
}

pub(super) fn partitions(leases: &[Lease]) -> Vec<i64> {
    leases.iter().map(|lease| i64::from(lease.partition)).collect()
}

/// Bounded by a century, which every database can add to its clock.
fn micros(ttl: Duration) -> i64 {
    const CENTURY: i64 = 100 * 365 * 24 * 3600 * 1_000_000;
    i64::try_from(ttl.as_micros()).unwrap_or(CENTURY).min(CENTURY)
}
