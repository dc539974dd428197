//! Partition leases. Each acquisition raises `epoch` under the row lock. A crash leaves at most
//! unused leases, which expire.

pub(crate) mod sql;

use std::time::Duration;

use outbox_core::message::PARTITIONS;
use outbox_core::store::LEASE_TTL_MAX;
use outbox_core::{Lease, OwnerId, PartitionOwner, SetupKind, StoreError};
use sea_orm::{DbBackend, DbErr, QueryResult};
use uuid::Uuid;

use super::relay;
use super::row::since;
use super::session::Session;
use crate::sql::{Dialect, micros};

/// If fewer than `max` leases are free, shortens leases granted before the clock was set back.
pub(super) async fn acquire(
    db: &Session,
    owner: OwnerId,
    ttl: Duration,
    max: u16,
) -> Result<(Vec<Lease>, Option<LeaseRows>), DbErr> {
    let leases = take(db, owner.as_uuid(), micros(ttl), max).await?;
    if leases.len() >= usize::from(max) {
        return Ok((leases, None));
    }
    let rows = rows(db).await?;
    if rows.ahead > 0 {
        db.execute(sql::shorten(&db.dialect)).await?;
    }
    let rows = leases.is_empty().then_some(rows);
    Ok((leases, rows))
}

pub(super) struct LeaseRows {
    present: i64,
    /// Leases granted before the clock was set back.
    ahead: i64,
}

impl LeaseRows {
    pub(super) fn check(&self, dialect: &Dialect) -> Result<(), StoreError> {
        if self.present >= i64::from(PARTITIONS) {
            return Ok(());
        }
        Err(StoreError::setup(
            SetupKind::Leases,
            format!(
                "table {} has rows for {} of {PARTITIONS} partitions, so messages of the other partitions are not published; the table was emptied, \
                 or restored without its rows",
                dialect.leases, self.present
            ),
            "run `outbox migrate` (`outbox::migrate`) to insert the missing rows",
        ))
    }
}

pub(super) async fn rows(db: &Session) -> Result<LeaseRows, DbErr> {
    let row = db.only(sql::rows(&db.dialect)).await?;
    Ok(LeaseRows {
        present: row.try_get("", "leases")?,
        ahead: row.try_get("", "ahead")?,
    })
}

async fn take(db: &Session, owner: Uuid, ttl: i64, max: u16) -> Result<Vec<Lease>, DbErr> {
    let tx = db.begin().await?;
    let mut leases = tx.read(sql::lock_free(&db.dialect, max), read).await?;
    if !leases.is_empty() {
        let take = sql::take(&db.dialect, owner, ttl, &partitions(&leases));
        tx.execute(take).await?;
    }
    tx.commit().await?;
    leases.iter_mut().for_each(|lease| lease.epoch += 1);
    Ok(leases)
}

pub(super) async fn renew(
    db: &Session,
    owner: OwnerId,
    leases: &[Lease],
    ttl: Duration,
) -> Result<Vec<Lease>, DbErr> {
    let tx = db.begin().await?;
    let owned = lock_live(&tx, owner, leases).await?;
    if !owned.is_empty() {
        tx.execute(sql::extend(&db.dialect, micros(ttl), &partitions(&owned)))
            .await?;
    }
    tx.commit().await?;
    Ok(owned)
}

pub(super) async fn release(db: &Session, owner: OwnerId, leases: &[Lease]) -> Result<(), DbErr> {
    let tx = db.begin().await?;
    let owned = lock_live(&tx, owner, leases).await?;
    if !owned.is_empty() {
        tx.execute(sql::release(&db.dialect, &partitions(&owned))).await?;
    }
    tx.commit().await
}

async fn lock_live(tx: &Session, owner: OwnerId, leases: &[Lease]) -> Result<Vec<Lease>, DbErr> {
    let lock = sql::lock_live(&tx.dialect, owner.as_uuid(), &partitions(leases));
    let mut owned = tx.read(lock, read).await?;
    owned.retain(|lease| leases.contains(lease));
    Ok(owned)
}

pub(super) async fn leave(db: &Session, owner: OwnerId) -> Result<(), DbErr> {
    let (owner, tx) = (owner.as_uuid(), db.begin().await?);
    if db.dialect.backend != DbBackend::Sqlite {
        tx.all(sql::lock_all(&db.dialect, owner)).await?;
    }
    tx.execute(sql::release_all(&db.dialect, owner)).await?;
    tx.execute(relay::sql::withdraw(&db.dialect, owner)).await?;
    tx.commit().await
}

pub(super) async fn lock(tx: &Session, claimed: &[Lease]) -> Result<Vec<Lease>, DbErr> {
    let mut owned = tx
        .read(sql::lock(&tx.dialect, &partitions(claimed)), read)
        .await?;
    owned.retain(|lease| claimed.contains(lease));
    Ok(owned)
}

fn read(row: &QueryResult) -> Result<Lease, DbErr> {
    let partition: i64 = row.try_get("", "partition_no")?;
    let partition = u16::try_from(partition)
        .map_err(|_| DbErr::Type(format!("partition {partition} of a lease is out of range")))?;
    let epoch = row.try_get("", "epoch")?;
    Ok(Lease { partition, epoch })
}

pub(super) fn partitions(leases: &[Lease]) -> Vec<i64> {
    leases.iter().map(|lease| i64::from(lease.partition)).collect()
}

pub(super) async fn owners(db: &Session) -> Result<Vec<PartitionOwner>, DbErr> {
    db.read(sql::all(&db.dialect), read_owner).await
}

fn read_owner(row: &QueryResult) -> Result<PartitionOwner, DbErr> {
    let Lease { partition, epoch } = read(row)?;
    let owner = row.try_get::<Option<Uuid>>("", "owner")?.map(OwnerId::from);
    let expires_in = since(row.try_get("", "now_micros")?, row.try_get("", "expires_micros")?);
    let is_ahead = owner.is_some() && expires_in > LEASE_TTL_MAX;
    let is_live = owner.is_some() && !expires_in.is_zero() && !is_ahead;
    Ok(PartitionOwner {
        partition,
        epoch,
        owner: owner.filter(|_| is_live),
        last_owner: owner.filter(|_| !is_live),
        expires_in: if is_live { expires_in } else { Duration::ZERO },
        is_ahead,
    })
}
