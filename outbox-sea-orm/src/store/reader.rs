//! Single facts, for whoever asks why something does not arrive.
//!
//! Invariant: each fact is one statement, or two that read by key. Nothing is locked or written.

use std::num::NonZeroU32;
use std::sync::Arc;

use outbox_core::store::LEASE_TTL_MAX;
use outbox_core::{
    Aggregate, AggregateHead, BlockedAggregate, ExpiredRelay, FoundMessage, MessageId, OutboxReader, OwnerId,
    PartitionOwner, PublishedFound, PublishedSearch, Selection, StoreError, StoredMessage,
};
use sea_orm::{DbErr, QueryResult};
use time::OffsetDateTime;
use uuid::Uuid;

use super::session::Session;
use super::{SqlStore, admin, failed, fetch, ids, relays, search};
use crate::dialect::Dialect;
use crate::dialect::ids::IdRange;

impl OutboxReader for SqlStore {
    async fn find(&self, id: MessageId) -> Result<Option<FoundMessage>, StoreError> {
        self.call(move |db, dialect| async move { find(&db, &dialect, id).await })
            .await
    }

    async fn recorded_between(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let recorded = (recorded_from, recorded_until);
        let context = "recorded messages could not be read";
        self.run(context, move |db, dialect| async move {
            let ids = ids::range(&db, &dialect, IdRange::of(recorded.0, recorded.1)).await?;
            let statement = dialect.recorded_between(recorded, ids, after, i64::from(limit.get()));
            let rows = db.query_all_raw(statement).await?;
            rows.iter().map(admin::read_stored).collect()
        })
        .await
    }

    async fn search_published(&self, search: &PublishedSearch) -> Result<PublishedFound, StoreError> {
        let search = search.clone();
        let context = "published messages could not be looked through";
        self.run(context, move |db, dialect| async move {
            search::search_published(&db, &dialect, &search).await
        })
        .await
    }

    async fn head(&self, aggregate: &Aggregate) -> Result<Option<AggregateHead>, StoreError> {
        let aggregate = aggregate.clone();
        let context = "the head row of the aggregate could not be read";
        self.run(context, move |db, dialect| async move {
            let row = db.query_one_raw(dialect.head(&aggregate)).await?;
            row.as_ref().map(read_head).transpose()
        })
        .await
    }

    async fn block(&self, aggregate: &Aggregate) -> Result<Option<BlockedAggregate>, StoreError> {
        let aggregate = aggregate.clone();
        let context = "the block of the aggregate could not be read";
        self.run(context, move |db, dialect| async move {
            let row = db.query_one_raw(dialect.block(&aggregate)).await?;
            row.as_ref().map(admin::read_blocked).transpose()
        })
        .await
    }

    async fn expired_relays(&self) -> Result<Vec<ExpiredRelay>, StoreError> {
        self.run("relays could not be listed", |db, dialect| async move {
            relays::expired(&db, &dialect).await
        })
        .await
    }

    async fn partitions(&self) -> Result<Vec<PartitionOwner>, StoreError> {
        self.run("partitions could not be listed", |db, dialect| async move {
            let rows = db.query_all_raw(dialect.partitions()).await?;
            rows.iter().map(read_partition).collect()
        })
        .await
    }
}

async fn find(db: &Session, dialect: &Dialect, id: MessageId) -> Result<Option<FoundMessage>, StoreError> {
    const CONTEXT: &str = "the message could not be read";
    let row = db
        .query_one_raw(dialect.find(id))
        .await
        .map_err(failed(CONTEXT))?;
    let stored = admin::list(db, dialect, &Selection::id(id), NonZeroU32::MIN).await;
    // A row that was purged between the two statements is gone.
    let (Some(row), Some(stored)) = (row, stored.map_err(failed(CONTEXT))?.pop()) else {
        return Ok(None);
    };
    let times = || -> Result<(Option<i64>, i64), DbErr> {
        Ok((
            row.try_get("", "available_micros")?,
            row.try_get("", "now_micros")?,
        ))
    };
    let (available, now) = times().map_err(failed(CONTEXT))?;
    Ok(Some(FoundMessage {
        stored,
        delayed_for: available
            .filter(|available| *available > now)
            .map(|available| admin::since(now, available)),
        message: fetch::read(&row, false)?.row.message.map(Arc::unwrap_or_clone),
    }))
}

fn read_head(row: &QueryResult) -> Result<AggregateHead, DbErr> {
    let last: i64 = row.try_get("", "last_sequence")?;
    let recorded = fetch::time_of(row.try_get("", "recorded_micros")?);
    Ok(AggregateHead {
        last_sequence: u64::try_from(last).unwrap_or_default(),
        recorded_at: recorded
            .map_err(|error| DbErr::Type(format!("recorded_at is out of range: {error}")))?,
    })
}

fn read_partition(row: &QueryResult) -> Result<PartitionOwner, DbErr> {
    let partition: i64 = row.try_get("", "partition_no")?;
    let owner = row.try_get::<Option<Uuid>>("", "owner")?.map(OwnerId::from);
    let expires_in = admin::since(row.try_get("", "now_micros")?, row.try_get("", "expires_micros")?);
    let is_ahead = owner.is_some() && expires_in > LEASE_TTL_MAX;
    let is_live = owner.is_some() && !expires_in.is_zero() && !is_ahead;
    Ok(PartitionOwner {
        partition: u16::try_from(partition)
            .map_err(|_| DbErr::Type(format!("partition {partition} of a lease is out of range")))?,
        epoch: row.try_get("", "epoch")?,
        owner: owner.filter(|_| is_live),
        // Whoever gives a lease back leaves no owner.
        last_owner: owner.filter(|_| !is_live),
        expires_in: if is_live {
            expires_in
        } else {
            std::time::Duration::ZERO
        },
        is_ahead,
    })
}
