//! The leases of partitions: the only place where relays compete.
//!
//! Invariant: each acquisition raises `epoch` under the row's lock. A crash leaves at most an unused lease, which runs out.

use std::time::Duration;

use outbox_core::message::PARTITIONS;
use outbox_core::{Lease, OwnerId, StoreError};
use sea_orm::{DbBackend, DbErr, QueryResult};

use super::session::Session;
use super::tables::setup;
#[cfg(feature = "postgres")]
use crate::dialect::postgres;
use crate::dialect::{Dialect, micros, mysql, sqlite, unsupported};

/// Takes free leases. If there are fewer than asked for, it shortens those that were granted before the clock was set back, and returns what the table lacks.
pub(super) async fn acquire(
    db: &Session,
    dialect: &Dialect,
    owner: OwnerId,
    ttl: Duration,
    max: u16,
) -> Result<(Vec<Lease>, Option<LeaseRows>), DbErr> {
    let leases = take(db, dialect, owner, ttl, max).await?;
    if leases.len() >= usize::from(max) {
        return Ok((leases, None));
    }
    let rows = rows(db, dialect).await?;
    if rows.ahead > 0 {
        db.execute_raw(dialect.shorten_leases()).await?;
    }
    // What was taken is kept: the relay asks again for the rest.
    let rows = leases.is_empty().then_some(rows);
    Ok((leases, rows))
}

/// The rows of the table of leases.
pub(super) struct LeaseRows {
    /// Partitions that have a row.
    present: i64,
    /// Leases that were granted before the clock was set back.
    ahead: i64,
}

impl LeaseRows {
    /// Refuses a table that lacks partitions: no relay could own them.
    pub(super) fn check(&self, dialect: &Dialect) -> Result<(), StoreError> {
        if self.present >= i64::from(PARTITIONS) {
            return Ok(());
        }
        Err(setup(format!(
            "table {} has rows for {} of {PARTITIONS} partitions, and no relay publishes the messages of the others; it was emptied, or restored \
             without its rows; run `outbox migrate` (`outbox::migrate`), which inserts them",
            dialect.leases, self.present
        )))
    }
}

pub(super) async fn rows(db: &Session, dialect: &Dialect) -> Result<LeaseRows, DbErr> {
    let row = db.query_one_raw(dialect.lease_rows()).await?;
    let row = row.ok_or_else(|| DbErr::RecordNotFound("a count of leases".to_owned()))?;
    Ok(LeaseRows {
        present: row.try_get("", "leases")?,
        ahead: row.try_get("", "ahead")?,
    })
}

async fn take(
    db: &Session,
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
            let tx = db.begin().await?;
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
    db: &Session,
    dialect: &Dialect,
    owner: OwnerId,
    leases: &[Lease],
    ttl: Duration,
) -> Result<Vec<Lease>, DbErr> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let (owner, ttl) = (owner.as_uuid(), micros(ttl));
    let mut owned = match dialect.backend {
        #[cfg(feature = "postgres")]
        DbBackend::Postgres => read(
            &db.query_all_raw(postgres::renew(dialect, owner, leases, ttl))
                .await?,
        )?,
        DbBackend::Sqlite => read(
            &db.query_all_raw(sqlite::renew(dialect, owner, leases, ttl))
                .await?,
        )?,
        _ => {
            let tx = db.begin().await?;
            let rows = tx
                .query_all_raw(dialect.lock_owned_leases(owner, &partitions(leases)))
                .await?;
            let mut owned = read(&rows)?;
            owned.retain(|lease| leases.contains(lease));
            if !owned.is_empty() {
                tx.execute_raw(dialect.extend_leases(ttl, &partitions(&owned)))
                    .await?;
            }
            tx.commit().await?;
            owned
        }
    };
    owned.sort_by_key(|lease| lease.partition);
    Ok(owned)
}

pub(super) async fn release(
    db: &Session,
    dialect: &Dialect,
    owner: OwnerId,
    leases: &[Lease],
) -> Result<(), DbErr> {
    if leases.is_empty() {
        return Ok(());
    }
    let tx = db.begin().await?;
    tx.execute_raw(dialect.release(owner.as_uuid(), leases)).await?;
    tx.commit().await
}

/// Gives all leases back and withdraws the announcement.
pub(super) async fn leave(db: &Session, dialect: &Dialect, owner: OwnerId) -> Result<(), DbErr> {
    let tx = db.begin().await?;
    if dialect.backend != DbBackend::Sqlite {
        tx.query_all_raw(dialect.lock_owned(owner.as_uuid())).await?;
    }
    tx.execute_raw(dialect.release_all(owner.as_uuid())).await?;
    tx.execute_raw(dialect.withdraw(owner.as_uuid())).await?;
    tx.commit().await
}

/// Reads leases from rows with `partition_no` and `epoch`.
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
