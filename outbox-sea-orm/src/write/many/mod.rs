//! Inserts many rows and their events, in multi-row statements.
//!
//! Invariants: one transaction; memory holds one chunk besides models and result; events belong to
//! exactly the returned rows.

mod chunks;

use outbox_core::{Events, IntoEvents, MessageContext};
use sea_orm::sea_query::{MysqlQueryBuilder, Query, ValueTuple};
use sea_orm::{
    ActiveModelTrait as _, ColumnTrait as _, Condition, ConnectionTrait as _, DbBackend, DbErr, EntityTrait,
    FromQueryResult as _, InsertMany, IntoActiveModel, Iterable as _, PrimaryKeyToColumn as _,
    QueryFilter as _, QueryTrait as _, Statement, Value,
};

use self::chunks::Chunks;
use crate::error::SaveError;
use crate::write::executor::{Executor, Work};
use crate::write::record::record_events;
use crate::write::transaction::{OutboxTransaction, Transactional as _, look};

/// A closure that makes the events of each row. Implemented for all such closures.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a closure that makes the events of each row",
    label = "expected a closure over the model",
    note = "write `|order| [event]`; it is called for each row, so clone what it uses up"
)]
pub trait MakesEventsOfEach<M>: FnMut(&M) -> Self::Made + Send + 'static {
    /// Result of the closure.
    type Made;
}

#[diagnostic::do_not_recommend]
impl<M, F, R> MakesEventsOfEach<M> for F
where
    F: FnMut(&M) -> R + Send + 'static,
{
    type Made = R;
}

/// Inserts many rows and their events. Implemented for every SeaORM entity.
///
/// The call uses one transaction, as for [`SaveWithEvents`](crate::SaveWithEvents). A statement has
/// up to 1,000 rows and 4 MiB (MySQL, MariaDB: 500 rows, 512 KiB), or 5,000 events (PostgreSQL;
/// others: 500). The closure runs once per stored row, and may return several events or none.
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
/// use outbox_sea_orm::SaveManyWithEvents;
/// use sea_orm::Set;
///
/// let orders = [1999, 2999].map(|total_cents| order::ActiveModel {
///     total_cents: Set(total_cents),
///     ..Default::default()
/// });
/// let saved = order::Entity::insert_many_with_events(orders, &db, |order| {
///     [OrderPlaced { order_id: order.id, total_cents: order.total_cents }]
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
///
/// Hooks of [`ActiveModelBehavior`](sea_orm::ActiveModelBehavior) do not run, as in SeaORM.
///
/// For updates and deletes, [`record`](crate::record()) an event per row in one transaction.
///
/// # MySQL and MariaDB
///
/// MySQL needs the primary key of each model, otherwise the result is [`SaveError::Unsupported`].
/// MariaDB (10.5) returns inserted rows.
///
/// # Cancellation and errors
///
/// The rules of [`SaveWithEvents`](crate::SaveWithEvents) apply. Concurrent bulk saves for the same
/// aggregates can deadlock; [`OutboxConnection::transaction`](crate::OutboxConnection::transaction)
/// repeats them.
pub trait SaveManyWithEvents: EntityTrait
where
    Self::Model: IntoActiveModel<Self::ActiveModel> + Send + 'static,
    Self::ActiveModel: Send + 'static,
{
    /// Inserts the models with their events. Returns the saved models in no particular order.
    ///
    /// Models with different columns set get separate statements. The iterator is read in the open
    /// transaction.
    fn insert_many_with_events<I, D, F>(
        models: I,
        db: &D,
        mut events: F,
    ) -> impl Future<Output = Result<Vec<Self::Model>, SaveError>> + Send
    where
        I: IntoIterator<Item = Self::ActiveModel, IntoIter: Send + 'static>,
        D: Executor,
        F: MakesEventsOfEach<Self::Model, Made: IntoEvents>,
    {
        let models = models.into_iter();
        async move {
            let context = MessageContext::current();
            db.execute(move |tx| -> Work<'_, Vec<Self::Model>> {
                Box::pin(async move {
                    let mut chunks = Chunks::new(models, tx.get_database_backend());
                    let mut all = Vec::new();
                    let mut is_whole = false;
                    while let Some(chunk) = chunks.next() {
                        let saved = insert::<Self>(tx, chunk).await?;
                        let made = context.clone().sync_scope(|| {
                            let mut made = Events::new();
                            saved
                                .iter()
                                .for_each(|row| made.append(events(row).into_events()));
                            made
                        });
                        is_whole = !record_events(tx, tx.config(), made).await?.is_empty();
                        all.extend(saved);
                    }
                    if !is_whole {
                        look(tx).await.map_err(SaveError::Database)?;
                    }
                    Ok(all)
                })
            })
            .await
        }
    }
}

impl<E> SaveManyWithEvents for E
where
    E: EntityTrait,
    E::Model: IntoActiveModel<E::ActiveModel> + Send + 'static,
    E::ActiveModel: Send + 'static,
{
}

async fn insert<E>(tx: &OutboxTransaction, models: Vec<E::ActiveModel>) -> Result<Vec<E::Model>, SaveError>
where
    E: EntityTrait,
    E::Model: IntoActiveModel<E::ActiveModel> + Send,
    E::ActiveModel: Send,
{
    let number = models.len();
    let saved = if tx.support_returning() {
        E::insert_many(models).exec_with_returning(tx).await?
    } else {
        let keys: Option<Vec<_>> = models.iter().map(|model| model.get_primary_key_value()).collect();
        let insert = E::insert_many(models);
        match keys {
            Some(keys) => {
                insert.exec_without_returning(tx).await?;
                E::find().filter(by_keys::<E>(keys)).all(tx).await?
            }
            None => returning::<E>(tx, insert).await?,
        }
    };
    if saved.len() != number {
        return Err(SaveError::Unsupported {
            why: "the number of returned rows differs from the number of models; set primary keys that the database stores unchanged, or leave the keys unset",
        });
    }
    Ok(saved)
}

fn by_keys<E: EntityTrait>(keys: Vec<ValueTuple>) -> Condition {
    let columns: Vec<_> = E::PrimaryKey::iter().map(|key| key.into_column()).collect();
    if let [column] = *columns {
        let values: Vec<Value> = keys.into_iter().flatten().collect();
        return Condition::all().add(column.is_in(values));
    }
    let row = |key: ValueTuple| {
        let equal = columns.iter().zip(key).map(|(column, value)| column.eq(value));
        equal.fold(Condition::all(), Condition::add)
    };
    keys.into_iter().map(row).fold(Condition::any(), Condition::add)
}

/// SeaORM does not support `INSERT … RETURNING` on MariaDB.
async fn returning<E: EntityTrait>(
    tx: &OutboxTransaction,
    insert: InsertMany<E::ActiveModel>,
) -> Result<Vec<E::Model>, SaveError>
where
    E::ActiveModel: Send,
{
    let mut statement = insert.build(DbBackend::MySql);
    let ask = Statement::from_string(DbBackend::MySql, "SELECT VERSION()");
    let version = tx.query_one_raw(ask).await?;
    let version: Option<String> = version.map(|row| row.try_get_by_index(0)).transpose()?;
    if !version.is_some_and(|version| version.contains("MariaDB")) {
        return Err(SaveError::Unsupported {
            why: "MySQL does not return inserted rows; set the primary key of each model, or save each model separately",
        });
    }
    let mut columns = Query::select();
    columns.exprs(
        E::Column::iter().map(|column| column.select_as(column.into_returning_expr(DbBackend::MySql))),
    );
    let columns = columns.to_string(MysqlQueryBuilder);
    statement.sql.push_str(" RETURNING ");
    statement.sql.push_str(columns.trim_start_matches("SELECT "));
    let rows = tx.query_all_raw(statement).await?;
    let models: Result<_, DbErr> = rows
        .iter()
        .map(|row| E::Model::from_query_result(row, ""))
        .collect();
    models.map_err(SaveError::Database)
}
