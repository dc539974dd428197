//! Saves a SeaORM model and its events.
//!
//! Invariant: model and events are stored in one transaction, or neither. Over a pool, SeaORM's
//! `after_save` would run outside the transaction.

use std::future::Future;

use outbox_core::{Events, IntoEvents, MessageContext};
use sea_orm::{
    ActiveModelBehavior, ActiveModelTrait, DbErr, EntityName, EntityTrait, IntoActiveModel, Iterable,
    PrimaryKeyToColumn,
};

use crate::error::SaveError;
use crate::write::executor::{Executor, Work};
use crate::write::record::record_events;
use crate::write::transaction::OutboxTransaction;
use crate::write::transaction::Transactional as _;
use crate::write::transaction::look;

pub(crate) type ModelOf<A> = <<A as ActiveModelTrait>::Entity as EntityTrait>::Model;

/// A closure that makes events from the model. Implemented for all such closures.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a closure that makes events",
    label = "expected a closure over the model",
    note = "write `|_| [event]` for an event that exists, or `|order| [event]` to make it from the saved model"
)]
pub trait MakesEvents<M>: FnOnce(&M) -> Self::Made + Send + 'static {
    /// Result of the closure.
    type Made;
}

#[diagnostic::do_not_recommend]
impl<M, F, R> MakesEvents<M> for F
where
    F: FnOnce(&M) -> R + Send + 'static,
{
    type Made = R;
}

/// Saves active models with events. Implemented for every SeaORM active model.
///
/// `db` is a pool (own transaction) or an open transaction: see [`Executor`].
///
/// ```
/// # use outbox_core::DomainEvent;
/// # mod order {
/// #     use sea_orm::entity::prelude::*;
/// #     #[sea_orm::model]
/// #     #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
/// #     #[sea_orm(table_name = "orders")]
/// #     pub struct Model { #[sea_orm(primary_key)] pub id: i32, pub total_cents: i64 }
/// #     impl ActiveModelBehavior for ActiveModel {}
/// # }
/// # #[derive(DomainEvent, serde::Serialize)] #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: i32, total_cents: i64 }
/// # async fn demo(db: sea_orm::DatabaseConnection) -> Result<(), Box<dyn std::error::Error>> {
/// use outbox_sea_orm::SaveWithEvents;
/// use sea_orm::Set;
///
/// let order = order::ActiveModel { total_cents: Set(1999), ..Default::default() }
///     .insert_with_events(&db, |order| {
///         [OrderPlaced { order_id: order.id, total_cents: order.total_cents }]
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
///
/// # Events
///
/// The closure runs between write and commit. Its argument is the saved model, with generated keys
/// and defaults; for a delete, the deleted active model.
///
/// | events | closure |
/// |---|---|
/// | one or several of one type | `\|order\| [OrderPaid { order_id: order.id }]`, or a `Vec` |
/// | one, or none | `\|order\| order.paid.then(\|\| OrderPaid { order_id: order.id })` |
/// | of several types | `\|order\| Events::new().with(paid(order)).with(shipped(order))` |
/// | made before the save | `\|_\| [event]` |
/// | none | `\|_\| None::<OrderPaid>` |
///
/// The closure is `'static`: use `move`, and clone variables needed later.
///
/// # Cancellation
///
/// Over a pool the work runs in a separate task, with the caller's span and [`MessageContext`],
/// without its task-locals. If the caller is dropped before the transaction begins, nothing is
/// saved. If dropped later, the transaction commits or rolls back as a whole.
///
/// If a save in an open transaction is dropped, drop the transaction too. A transaction from
/// [`OutboxConnection::begin`](crate::OutboxConnection::begin) or of a handler rejects the commit.
/// At a shutdown of the runtime, the server rolls back.
///
/// # Errors
///
/// [`SaveError`]. Nothing is stored, except possibly with [`SaveError::CommitUnknown`]. A
/// transaction keeps its other changes, except with [`SaveError::TransactionLost`].
pub trait SaveWithEvents: ActiveModelTrait + ActiveModelBehavior + Send + 'static
where
    ModelOf<Self>: IntoActiveModel<Self> + Send + Sync + 'static,
{
    /// Inserts the model and records the events, even if the client assigns the primary key.
    fn insert_with_events<D, F>(
        self,
        db: &D,
        events: F,
    ) -> impl Future<Output = Result<ModelOf<Self>, SaveError>> + Send
    where
        D: Executor,
        F: MakesEvents<ModelOf<Self>, Made: IntoEvents>,
    {
        // The context is read at the first poll, for `context.scope(order.insert_with_events(…))`.
        async move { db.execute(with_events(self, Write::Insert, events)).await }
    }

    /// Updates the model and records the events. Returns [`SaveError::RowMissing`] if no row
    /// matches.
    fn update_with_events<D, F>(
        self,
        db: &D,
        events: F,
    ) -> impl Future<Output = Result<ModelOf<Self>, SaveError>> + Send
    where
        D: Executor,
        F: MakesEvents<ModelOf<Self>, Made: IntoEvents>,
    {
        async move { db.execute(with_events(self, Write::Update, events)).await }
    }

    /// Updates the model if its primary key is set, otherwise inserts it, as SeaORM's `save`.
    /// Returns [`SaveError::RowMissing`] for a new row with a client-assigned key: use
    /// [`Self::insert_with_events`].
    fn save_with_events<D, F>(
        self,
        db: &D,
        events: F,
    ) -> impl Future<Output = Result<ModelOf<Self>, SaveError>> + Send
    where
        D: Executor,
        F: MakesEvents<ModelOf<Self>, Made: IntoEvents>,
    {
        async move { db.execute(with_events(self, Write::Save, events)).await }
    }

    /// Deletes the row and records the events. Returns [`SaveError::RowMissing`], without recording
    /// events, if no row matches.
    ///
    /// The closure gets the model before [`ActiveModelBehavior::before_delete`] changes it.
    fn delete_with_events<D, F>(self, db: &D, events: F) -> impl Future<Output = Result<(), SaveError>> + Send
    where
        D: Executor,
        F: MakesEvents<Self, Made: IntoEvents>,
    {
        async move {
            let context = MessageContext::current();
            db.execute(move |tx| -> Work<'_, ()> {
                Box::pin(async move {
                    let deleted = self.clone().delete(tx).await.map_err(SaveError::Database)?;
                    if deleted.rows_affected == 0 {
                        return Err(SaveError::RowMissing {
                            table: table::<Self>(),
                        });
                    }
                    // The model need not be `Sync`, because the events are built before the await.
                    let events = context.sync_scope(|| events(&self).into_events());
                    record_or_look(tx, events).await
                })
            })
            .await
        }
    }
}

impl<A> SaveWithEvents for A
where
    A: ActiveModelTrait + ActiveModelBehavior + Send + 'static,
    ModelOf<A>: IntoActiveModel<A> + Send + Sync + 'static,
{
}

#[derive(Clone, Copy)]
enum Write {
    Insert,
    Update,
    Save,
}

fn with_events<A, F>(
    model: A,
    how: Write,
    events: F,
) -> impl for<'t> FnOnce(&'t OutboxTransaction) -> Work<'t, ModelOf<A>> + Send + 'static
where
    A: ActiveModelTrait + ActiveModelBehavior + Send + 'static,
    ModelOf<A>: IntoActiveModel<A> + Send + Sync + 'static,
    F: MakesEvents<ModelOf<A>, Made: IntoEvents>,
{
    // The task of the save has no ambient context.
    let context = MessageContext::current();
    move |tx| {
        Box::pin(async move {
            let saved = write(model, how, tx).await?;
            let events = context.sync_scope(|| events(&saved).into_events());
            record_or_look(tx, events).await?;
            Ok(saved)
        })
    }
}

/// A hook of the model may have ignored an error.
pub(crate) async fn record_or_look(tx: &OutboxTransaction, events: Events) -> Result<(), SaveError> {
    if record_events(tx, tx.config(), events).await?.is_empty() {
        look(tx).await.map_err(SaveError::Database)?;
    }
    Ok(())
}

async fn write<A>(model: A, how: Write, tx: &OutboxTransaction) -> Result<ModelOf<A>, SaveError>
where
    A: ActiveModelTrait + ActiveModelBehavior + Send,
    ModelOf<A>: IntoActiveModel<A>,
{
    let is_set = |key: <A::Entity as EntityTrait>::PrimaryKey| !model.get(key.into_column()).is_not_set();
    let update = match how {
        Write::Insert => false,
        Write::Update => true,
        Write::Save => <A::Entity as EntityTrait>::PrimaryKey::iter().all(is_set),
    };
    if !update {
        return model.insert(tx).await.map_err(SaveError::Database);
    }
    model.update(tx).await.map_err(|error| match error {
        DbErr::RecordNotUpdated => SaveError::RowMissing { table: table::<A>() },
        error => SaveError::Database(error),
    })
}

fn table<A: ActiveModelTrait>() -> String {
    A::Entity::default().table_name().to_owned()
}
