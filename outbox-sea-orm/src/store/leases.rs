//! The leases of partitions: the only place where relays compete.
//!
//! Invariant: each acquisition raises `epoch` under the row's lock. A crash leaves at most an unused lease, which runs out.

use std::time::Duration;

use outbox_core::{Fitness, Lease, OwnerId, Relays};
use sea_orm::{DbBackend, DbErr, QueryResult};

use super::session::Session;
#[cfg(feature = "postgres")]
use crate::dialect::postgres;
use crate::dialect::{Dialect, micros, mysql, sqlite, unsupported};

pub(super) async fn acquire(
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

/// Announces that a relay is alive, its fitness and its name. Returns the number of live relays by fitness. The relay counts itself, even if its
/// announcement ran out at once.
pub(super) async fn announce(
    db: &Session,
    dialect: &Dialect,
    owner: OwnerId,
    ttl: Duration,
    fitness: Fitness,
    name: &str,
) -> Result<Relays, DbErr> {
    let (owner, ttl) = (owner.as_uuid(), micros(ttl));
    let count = match dialect.backend {
        #[cfg(feature = "postgres")]
        DbBackend::Postgres => postgres::announce(dialect, owner, ttl, fitness, name),
        // Three statements without a transaction: each one locks only its own rows, so relays that announce at the same time cannot deadlock.
        _ => {
            db.execute_raw(dialect.announce(owner, ttl, fitness, name))
                .await?;
            db.execute_raw(dialect.forget_relays()).await?;
            dialect.count_relays(owner)
        }
    };
    let mut relays = Relays::default();
    relays.count(fitness, 1);
    for row in db.query_all_raw(count).await? {
        let number: i64 = row.try_get("", "fitness")?;
        let count: i64 = row.try_get("", "relays")?;
        let said = Fitness::ALL
            .into_iter()
            .find(|fitness| i64::from(fitness.number()) == number);
        // A number of a newer version is unknown here: such a relay is alive.
        relays.count(said.unwrap_or_default(), u32::try_from(count).unwrap_or_default());
    }
    Ok(relays)
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
