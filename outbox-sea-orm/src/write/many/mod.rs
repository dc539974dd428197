//! Saves many rows together with their events, in multi-row statements.
//!
//! Invariants: rows and events are written in one transaction. Rows are written, and their events made and recorded, chunk by chunk, so that besides
//! the caller's models and the answer only one chunk is in memory. An event is made for each row that the database says it has written, and for no
//! other.

mod chunks;
mod rows;

use outbox_core::{Events, IntoEvents, MessageContext};
use sea_orm::sea_query::{IntoCondition, OnConflict};
use sea_orm::{Condition, ConnectionTrait as _, EntityTrait, IntoActiveModel, QueryTrait as _, UpdateMany};

use self::chunks::Chunks;
use self::rows::{Insert, keys};
use crate::error::SaveError;
use crate::write::executor::{Executor, Work};
use crate::write::record::record_events;
use crate::write::transaction::OutboxTransaction;
use crate::write::transaction::Transactional as _;
use crate::write::transaction::look;

/// A closure that makes the events of each row: see [`SaveManyWithEvents`]. Implemented for every such closure.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a closure that makes the events of each row",
    label = "expected a closure over the model",
    note = "write `|order| [event]`; it is called for each row, so clone what it uses up"
)]
pub trait MakesEventsOfEach<M>: FnMut(&M) -> Self::Made + Send + 'static {
    /// What the closure returns.
    type Made;
}

#[diagnostic::do_not_recommend]
impl<M, F, R> MakesEventsOfEach<M> for F
where
    F: FnMut(&M) -> R + Send + 'static,
{
    type Made = R;
}

/// Saves many rows of an entity together with their events. Implemented for every SeaORM entity.
///
/// Everything is one transaction, as with [`SaveWithEvents`](crate::SaveWithEvents): a pool opens and commits one, an open transaction is joined.
/// Rows are written with statements of up to 1,000 rows and 4 MiB (500 rows and 512 KiB on MySQL and MariaDB), and their events with statements of up to 5,000
/// (PostgreSQL) or 500 events. The closure is called once for each row that was written, with the row as it is stored now; for a deletion, as it
/// was. It may return several events, or none.
///
/// ```
/// # use outbox_core::DomainEvent;
/// # mod order {
/// #     use sea_orm::entity::prelude::*;
/// #     #[sea_orm::model]
/// #     #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
/// #     #[sea_orm(table_name = "orders")]
/// #     pub struct Model { #[sea_orm(primary_key)] pub id: i32, pub total_cents: i64, pub shipped: bool }
/// #     impl ActiveModelBehavior for ActiveModel {}
/// # }
/// # #[derive(DomainEvent, serde::Serialize)] #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: i32, total_cents: i64 }
/// # #[derive(DomainEvent, serde::Serialize)] #[domain_event(aggregate = "order", name = "shipped")]
/// # struct OrderShipped { #[domain_event(aggregate_id)] order_id: i32 }
/// # async fn demo(db: sea_orm::DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
/// use outbox_sea_orm::SaveManyWithEvents;
/// use sea_orm::{ColumnTrait, EntityTrait, Set};
///
/// let orders = [1999, 2999].map(|total_cents| order::ActiveModel { total_cents: Set(total_cents), ..Default::default() });
/// let saved = order::Entity::insert_many_with_events(orders, &db, |order| {
///     [OrderPlaced { order_id: order.id, total_cents: order.total_cents }]
/// })
/// .await?;
///
/// let shipped = order::Entity::update_many().set(order::ActiveModel { shipped: Set(true), ..Default::default() });
/// let waiting = order::Column::Shipped.eq(false);
/// let number = order::Entity::update_many_with_events(shipped, waiting, &db, |order| {
///     [OrderShipped { order_id: order.id }]
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
///
/// As with SeaORM's own methods for many rows, hooks of [`ActiveModelBehavior`](sea_orm::ActiveModelBehavior) do not run.
///
/// # MySQL and MariaDB
///
/// MariaDB (10.5) returns the rows of an insert, MySQL does not: there each model needs its primary key, or [`SaveError::Unsupported`] says so. Neither
/// returns updated rows: they are locked first, and read again in the same transaction. Let an index serve
/// the filter: a search locks every row that it looks at. [`Self::upsert_many_with_events`] needs MariaDB, PostgreSQL or
/// SQLite.
///
/// # Cancellation and errors
///
/// As with [`SaveWithEvents`](crate::SaveWithEvents). After an error nothing of all the rows is stored, except with [`SaveError::CommitUnknown`]. Bulk
/// saves that run at the same time can deadlock with each other if they record events of the same aggregates:
/// [`OutboxConnection::transaction`](crate::OutboxConnection::transaction) repeats them.
pub trait SaveManyWithEvents: EntityTrait
where
    Self::Model: IntoActiveModel<Self::ActiveModel> + Send + 'static,
    Self::ActiveModel: Send + 'static,
{
    /// Inserts the models and records the events of each. Returns the saved models, in no particular order.
    ///
    /// Models with different columns set go into different statements, so that a column that is not set has its default. The iterator is read chunk
    /// by chunk, while the transaction is open.
    fn insert_many_with_events<I, D, F>(
        models: I,
        db: &D,
        events: F,
    ) -> impl Future<Output = Result<Vec<Self::Model>, SaveError>> + Send
    where
        I: IntoIterator<Item = Self::ActiveModel, IntoIter: Send + 'static>,
        D: Executor,
        F: MakesEventsOfEach<Self::Model, Made: IntoEvents>,
    {
        insert::<Self, _, _, _>(models.into_iter(), None, db, events)
    }

    /// Inserts the models, or updates the rows that exist, as the `ON CONFLICT` says, and records the events of each row that was written. Returns
    /// the saved models, in no particular order.
    ///
    /// The closure cannot tell an insert from an update. With `DO NOTHING`, the rows that exist are neither returned nor make events. MariaDB does not
    /// say which ones these are, so there it is [`SaveError::Unsupported`].
    fn upsert_many_with_events<I, D, F>(
        models: I,
        on_conflict: OnConflict,
        db: &D,
        events: F,
    ) -> impl Future<Output = Result<Vec<Self::Model>, SaveError>> + Send
    where
        I: IntoIterator<Item = Self::ActiveModel, IntoIter: Send + 'static>,
        D: Executor,
        F: MakesEventsOfEach<Self::Model, Made: IntoEvents>,
    {
        insert::<Self, _, _, _>(models.into_iter(), Some(on_conflict), db, events)
    }

    /// Updates all rows that the filter matches, and records the events of each. Returns their number.
    ///
    /// `changes` says what is set, and has no filter of its own. The rows are locked in the order of their primary keys, which are all held in memory;
    /// the rows are not. The primary key must not change. [`SaveError::RowsNotWritten`] if a locked row is not updated.
    fn update_many_with_events<C, D, F>(
        changes: UpdateMany<Self>,
        filter: C,
        db: &D,
        events: F,
    ) -> impl Future<Output = Result<u64, SaveError>> + Send
    where
        C: IntoCondition,
        D: Executor,
        F: MakesEventsOfEach<Self::Model, Made: IntoEvents>,
    {
        change(filter.into_condition(), Some(changes), db, events)
    }

    /// Deletes all rows that the filter matches, and records the events of each. Returns their number.
    ///
    /// The closure's argument is the row as it was. As with [`Self::update_many_with_events`], primary keys are held in memory.
    fn delete_many_with_events<C, D, F>(
        filter: C,
        db: &D,
        events: F,
    ) -> impl Future<Output = Result<u64, SaveError>> + Send
    where
        C: IntoCondition,
        D: Executor,
        F: MakesEventsOfEach<Self::Model, Made: IntoEvents>,
    {
        change::<Self, _, _>(filter.into_condition(), None, db, events)
    }
}

impl<E> SaveManyWithEvents for E
where
    E: EntityTrait,
    E::Model: IntoActiveModel<E::ActiveModel> + Send + 'static,
    E::ActiveModel: Send + 'static,
{
}

/// Inserts chunk by chunk. A crash in between rolls everything back.
async fn insert<E, I, D, F>(
    models: I,
    on_conflict: Option<OnConflict>,
    db: &D,
    mut events: F,
) -> Result<Vec<E::Model>, SaveError>
where
    E: EntityTrait,
    E::Model: IntoActiveModel<E::ActiveModel> + Send + 'static,
    E::ActiveModel: Send + 'static,
    I: Iterator<Item = E::ActiveModel> + Send + 'static,
    D: Executor,
    F: MakesEventsOfEach<E::Model, Made: IntoEvents>,
{
    let context = MessageContext::current();
    db.execute(move |tx| -> Work<'_, Vec<E::Model>> {
        Box::pin(async move {
            let mut recorder = Recorder::new(tx);
            let mut insert = Insert::<E>::new(tx, on_conflict);
            let mut all = Vec::new();
            let mut chunks = Chunks::new(models, tx.get_database_backend());
            while let Some(chunk) = chunks.next() {
                let saved = insert.chunk(chunk).await?;
                recorder.record(made(&context, saved.iter(), &mut events)).await?;
                all.extend(saved);
            }
            recorder.end().await?;
            Ok(all)
        })
    })
    .await
}

/// Updates or deletes the rows that a filter selects, and records their events. Rows are locked in the order of their keys.
async fn change<E, D, F>(
    filter: Condition,
    changes: Option<UpdateMany<E>>,
    db: &D,
    mut events: F,
) -> Result<u64, SaveError>
where
    E: EntityTrait,
    E::Model: Send + 'static,
    D: Executor,
    F: MakesEventsOfEach<E::Model, Made: IntoEvents>,
{
    let context = MessageContext::current();
    db.execute(move |tx| -> Work<'_, u64> {
        Box::pin(async move {
            if let Some(changes) = &changes {
                if changes.as_query().get_values().is_empty() {
                    return Ok(0);
                }
                rows::check_changes(tx, changes).await?;
            }
            let mut recorder = Recorder::new(tx);
            let keys_max = chunks::keys_max::<E>(tx.get_database_backend());
            let mut count = 0;
            for (locked, chunk) in keys::<E>(tx, filter).await?.chunks::<E>(keys_max) {
                let changed = match &changes {
                    Some(changes) => rows::update(tx, changes, chunk).await?,
                    None => rows::delete::<E>(tx, chunk).await?,
                };
                rows::check_written::<E>(locked, &changed)?;
                count += changed.len() as u64;
                recorder
                    .record(made(&context, changed.iter(), &mut events))
                    .await?;
            }
            recorder.end().await?;
            Ok(count)
        })
    })
    .await
}

/// The events of some rows, in the context of the caller.
fn made<'r, M: 'r, F: MakesEventsOfEach<M, Made: IntoEvents>>(
    context: &MessageContext,
    rows: impl Iterator<Item = &'r M>,
    events: &mut F,
) -> Events {
    context.clone().sync_scope(|| {
        let mut all = Events::new();
        rows.for_each(|row| all.append(events(row).into_events()));
        all
    })
}

/// Records the events of one chunk after the other.
struct Recorder<'t> {
    tx: &'t OutboxTransaction,
    /// The last statement was one of ours, so the transaction has not failed.
    is_whole: bool,
}

impl<'t> Recorder<'t> {
    fn new(tx: &'t OutboxTransaction) -> Self {
        Self { tx, is_whole: false }
    }

    async fn record(&mut self, events: Events) -> Result<(), SaveError> {
        self.is_whole = !record_events(self.tx, self.tx.config(), events).await?.is_empty();
        Ok(())
    }

    /// If the last chunk had no events, looks whether the transaction has failed.
    async fn end(self) -> Result<(), SaveError> {
        if !self.is_whole {
            look(self.tx).await.map_err(SaveError::Database)?;
        }
        Ok(())
    }
}
