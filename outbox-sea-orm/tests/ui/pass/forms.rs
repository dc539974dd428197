//! All forms of the closure that makes events, over a pool, inside a transaction and in a task.
use outbox_core::DomainEvent;
use sea_orm::DatabaseConnection;

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
}

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "order", name = "deleted")]
struct OrderDeleted {
    #[domain_event(aggregate_id)]
    order_id: i32,
}

mod order {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
    }
    impl ActiveModelBehavior for ActiveModel {}
}

use outbox_core::{Events, NewMessage};
use outbox_sea_orm::{AggregateRoot, SaveWithEvents};
use sea_orm::{IntoActiveModel, TransactionTrait};

fn placed(order_id: i32) -> OrderPlaced {
    OrderPlaced { order_id }
}

/// A closure needs no type for its parameter, whatever it returns.
#[expect(clippy::too_many_lines, reason = "one form after the other")]
async fn save(db: DatabaseConnection, order: order::Model) -> Result<(), Box<dyn std::error::Error>> {
    let model = order::ActiveModel::default;
    model()
        .insert_with_events(&db, |order| [placed(order.id)])
        .await?;
    model()
        .insert_with_events(&db, |order| [placed(order.id), placed(order.id)])
        .await?;
    model()
        .update_with_events(&db, |order| vec![placed(order.id)])
        .await?;
    model()
        .save_with_events(&db, |order| Some(placed(order.id)))
        .await?;
    model()
        .save_with_events(&db, |order| (order.id > 0).then(|| placed(order.id)))
        .await?;
    model()
        .save_with_events(&db, |order| {
            if order.id > 0 {
                vec![placed(order.id)]
            } else {
                vec![]
            }
        })
        .await?;
    model().insert_with_events(&db, |_| None::<OrderPlaced>).await?;
    model().insert_with_events(&db, |_| Events::new()).await?;
    model()
        .insert_with_events(&db, |order| {
            Events::new()
                .with(placed(order.id))
                .with(OrderDeleted { order_id: order.id })
        })
        .await?;

    // Given events, also as messages.
    let given = placed(1);
    model().insert_with_events(&db, |_| [given]).await?;
    let message = NewMessage::from_event(&placed(1))?.with_header("tenant", "a")?;
    model().insert_with_events(&db, |_| [message]).await?;
    let events = Events::new().with(placed(1));
    model().insert_with_events(&db, |_| events).await?;

    // It owns what it uses. A function is as good as a closure.
    let (given, offset) = (vec![placed(1)], 7);
    model()
        .insert_with_events(&db, move |order| {
            let mut events = given;
            events.push(placed(order.id + offset));
            events
        })
        .await?;
    fn events_of(order: &order::Model) -> [OrderPlaced; 1] {
        [placed(order.id)]
    }
    model().insert_with_events(&db, events_of).await?;

    // A delete has the active model.
    model()
        .delete_with_events(&db, |_| [OrderDeleted { order_id: 1 }])
        .await?;
    let active = order.into_active_model();
    active
        .clone()
        .delete_with_events(&db, |order| {
            [OrderDeleted {
                order_id: *order.id.as_ref(),
            }]
        })
        .await?;
    active
        .clone()
        .delete_with_events(&db, |order| {
            order.id.try_as_ref().map(|id| OrderDeleted { order_id: *id })
        })
        .await?;
    active.delete_with_events(&db, |_| None::<OrderDeleted>).await?;

    // Raised events need none.
    let mut root = AggregateRoot::new(model());
    root.raise(placed(1));
    root.insert(&db).await?;

    // In a task of the caller's, over a pool and inside a transaction.
    let pool = db.clone();
    tokio::spawn(async move {
        let given = placed(1);
        let mut saved = model()
            .insert_with_events(&pool, |order| [given, placed(order.id)])
            .await?
            .into_active_model();
        saved.id = sea_orm::Set(2);
        saved
            .delete_with_events(&pool, |order| {
                [OrderDeleted {
                    order_id: *order.id.as_ref(),
                }]
            })
            .await
    })
    .await??;
    tokio::spawn(async move {
        let tx = db.begin().await?;
        model()
            .insert_with_events(&tx, |order| [placed(order.id)])
            .await?;
        model()
            .update_with_events(&tx, |order| [placed(order.id)])
            .await?;
        model().save_with_events(&tx, |order| [placed(order.id)]).await?;
        model()
            .delete_with_events(&tx, |order| {
                [OrderDeleted {
                    order_id: *order.id.as_ref(),
                }]
            })
            .await?;
        outbox_sea_orm::record(&tx, [placed(1)]).await?;
        tx.commit().await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })
    .await?
    .map_err(|error| error.to_string())?;
    Ok(())
}

/// Where the kind of model is a parameter, the closure's is inferred too.
async fn generic<A>(model: A, db: &DatabaseConnection) -> Result<(), outbox_sea_orm::SaveError>
where
    A: sea_orm::ActiveModelTrait<Entity = order::Entity> + sea_orm::ActiveModelBehavior + Send + 'static,
    order::Model: IntoActiveModel<A>,
{
    model.insert_with_events(db, |order| [placed(order.id)]).await?;
    Ok(())
}

fn main() {
    let _ = save;
    let _ = generic::<order::ActiveModel>;
}
