//! Collects domain events on an active model.
//!
//! Invariant: a drop with unsaved events logs an error with their names.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;

use outbox_core::{Events, IntoEvents, IntoMessage, MessageContext};
use sea_orm::{ActiveModelBehavior, ActiveModelTrait, DbErr, EntityTrait, IntoActiveModel};

use crate::error::SaveError;
use crate::write::executor::{Executor, Work};
use crate::write::save::{MakesEvents, ModelOf, SaveWithEvents, record_or_look};
use crate::write::transaction::OutboxTransaction;

/// An active model and its raised events. Each save consumes model and events, even if the save
/// fails.
///
/// ```
/// # use outbox_core::DomainEvent;
/// # mod order {
/// #     use sea_orm::entity::prelude::*;
/// #     #[sea_orm::model]
/// #     #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
/// #     #[sea_orm(table_name = "orders")]
/// #     pub struct Model { #[sea_orm(primary_key)] pub id: i32, pub shipped: bool }
/// #     impl ActiveModelBehavior for ActiveModel {}
/// # }
/// # #[derive(DomainEvent, serde::Serialize)]
/// # #[domain_event(aggregate = "order", name = "shipped")]
/// # struct OrderShipped { #[domain_event(aggregate_id)] order_id: i32 }
/// # type Outcome = Result<(), Box<dyn std::error::Error>>;
/// # async fn demo(db: sea_orm::DatabaseConnection, order: order::Model) -> Outcome {
/// use outbox_sea_orm::AggregateRoot;
/// use sea_orm::{IntoActiveModel, Set};
///
/// fn ship(order: &mut AggregateRoot<order::ActiveModel>) {
///     let order_id = *order.id.as_ref();
///     order.shipped = Set(true);
///     order.raise(OrderShipped { order_id });
/// }
///
/// let mut order = AggregateRoot::new(order.into_active_model());
/// ship(&mut order);
/// order.update(&db).await?;
/// # Ok(())
/// # }
/// ```
///
/// For generated keys use [`Self::raise_with`]; for nested active models (`ActiveModelEx`),
/// [`Self::nested`] and [`Self::save_by`]. `M` is the type of the saved model.
#[must_use = "raised events are lost unless the aggregate is saved"]
pub struct AggregateRoot<A: ActiveModelTrait, M = ModelOf<A>> {
    model: Option<A>,
    events: Events,
    later: Vec<Later<M>>,
}

type Make<M> = Box<dyn FnOnce(&M) -> Events + Send + Sync>;

struct Later<M> {
    make: Make<M>,
    then: Events,
}

/// Future returned by the closure of [`AggregateRoot::save_by`].
pub type Write<'t, M> = Pin<Box<dyn Future<Output = Result<M, DbErr>> + Send + 't>>;

type NestedOf<A> = <<A as ActiveModelTrait>::Entity as EntityTrait>::ModelEx;

impl<A: ActiveModelTrait + fmt::Debug, M> fmt::Debug for AggregateRoot<A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AggregateRoot")
            .field("model", &self.model)
            .field("events", &self.events)
            .field("later", &self.later.len())
            .finish()
    }
}

impl<A: ActiveModelTrait> AggregateRoot<A> {
    /// Wraps an active model.
    pub fn new(model: A) -> Self {
        Self::wrap(model)
    }
}

impl<A: ActiveModelTrait> AggregateRoot<A, NestedOf<A>> {
    /// Wraps an `ActiveModelEx`, as from `order::ActiveModel::builder()`, for [`Self::save_by`].
    pub fn nested(model: A) -> Self {
        Self::wrap(model)
    }
}

impl<A: ActiveModelTrait, M> AggregateRoot<A, M> {
    fn wrap(model: A) -> Self {
        Self {
            model: Some(model),
            events: Events::new(),
            later: Vec::new(),
        }
    }

    /// Raises an event for the save. The event is encoded now, with the ambient
    /// [`MessageContext`](outbox_core::MessageContext).
    pub fn raise(&mut self, event: impl IntoMessage) {
        let last = self.later.last_mut().map(|later| &mut later.then);
        last.unwrap_or(&mut self.events).push(event);
    }

    /// Raises events made from the saved model: an array, a `Vec`, an `Option` or [`Events`].
    /// Events keep the order of the raise calls. The closure runs only after a successful write.
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
    /// # #[derive(DomainEvent, serde::Serialize)]
    /// # #[domain_event(aggregate = "order", name = "placed")]
    /// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: i32, total_cents: i64 }
    /// use outbox_sea_orm::AggregateRoot;
    /// use sea_orm::Set;
    ///
    /// fn place(total_cents: i64) -> AggregateRoot<order::ActiveModel> {
    ///     let order = order::ActiveModel { total_cents: Set(total_cents), ..Default::default() };
    ///     let mut order = AggregateRoot::new(order);
    ///     order.raise_with(|order| {
    ///         [OrderPlaced { order_id: order.id, total_cents: order.total_cents }]
    ///     });
    ///     order
    /// }
    /// # place(1).discard_events();
    /// ```
    pub fn raise_with<F>(&mut self, events: F)
    where
        F: MakesEvents<M, Made: IntoEvents> + Sync,
    {
        self.later.push(Later {
            make: Box::new(move |saved: &M| events(saved).into_events()),
            then: Events::new(),
        });
    }

    /// The events raised before the first [`Self::raise_with`].
    #[must_use]
    pub fn raised(&self) -> &Events {
        &self.events
    }

    /// Discards the events, and returns the model.
    pub fn discard_events(mut self) -> A {
        self.take().0
    }

    fn take(&mut self) -> (A, impl FnOnce(&M) -> Events + Send + use<A, M>) {
        let model = self
            .model
            .take()
            .expect("the model is only taken by methods that consume the aggregate");
        let (mut all, later) = (std::mem::take(&mut self.events), std::mem::take(&mut self.later));
        let events = move |saved: &M| {
            for Later { make, then } in later {
                all.append(make(saved));
                all.append(then);
            }
            all
        };
        (model, events)
    }
}

impl<A, M> AggregateRoot<A, M>
where
    A: ActiveModelTrait + Send + 'static,
    M: Send + Sync + 'static,
{
    /// Runs your own write, such as of nested models, and records the raised events in the same
    /// transaction.
    ///
    /// ```
    /// # use outbox_core::DomainEvent;
    /// # mod basket {
    /// #     use sea_orm::entity::prelude::*;
    /// #     #[sea_orm::model]
    /// #     #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    /// #     #[sea_orm(table_name = "baskets")]
    /// #     pub struct Model {
    /// #         #[sea_orm(primary_key)] pub id: i32,
    /// #         #[sea_orm(has_many)] pub items: HasMany<super::article::Entity>,
    /// #     }
    /// #     impl ActiveModelBehavior for ActiveModel {}
    /// # }
    /// # mod article {
    /// #     use sea_orm::entity::prelude::*;
    /// #     #[sea_orm::model]
    /// #     #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    /// #     #[sea_orm(table_name = "items")]
    /// #     pub struct Model {
    /// #         #[sea_orm(primary_key)] pub id: i32, pub basket_id: i32, pub name: String,
    /// #         #[sea_orm(belongs_to, from = "basket_id", to = "id")]
    /// #         pub basket: BelongsTo<super::basket::Entity>,
    /// #     }
    /// #     impl ActiveModelBehavior for ActiveModel {}
    /// # }
    /// # #[derive(DomainEvent, serde::Serialize)]
    /// # #[domain_event(aggregate = "basket", name = "filled")]
    /// # struct BasketFilled { #[domain_event(aggregate_id)] basket_id: i32, items: usize }
    /// # async fn demo(db: sea_orm::DatabaseConnection) -> Result<(), outbox_sea_orm::SaveError> {
    /// use outbox_sea_orm::AggregateRoot;
    ///
    /// let item = article::ActiveModel::builder().set_name("chai");
    /// let basket = basket::ActiveModel::builder().add_item(item);
    /// let mut basket = AggregateRoot::nested(basket);
    /// basket.raise_with(|basket| {
    ///     [BasketFilled { basket_id: basket.id, items: basket.items.len() }]
    /// });
    /// let saved = basket.save_by(&db, |basket, tx| Box::pin(basket.insert(tx))).await?;
    /// # Ok(())
    /// # }
    /// # fn main() {}
    /// ```
    ///
    /// The rules of [`SaveWithEvents`](crate::SaveWithEvents) apply. A closure that writes no row
    /// must return an error: SeaORM skips a nested model without set columns. Events recorded by
    /// the closure are stored too.
    ///
    /// # Errors
    ///
    /// [`SaveError`]; [`SaveError::Database`] contains the closure's error.
    pub async fn save_by<D, W>(mut self, db: &D, write: W) -> Result<M, SaveError>
    where
        D: Executor,
        W: for<'t> FnOnce(A, &'t OutboxTransaction) -> Write<'t, M> + Send + 'static,
    {
        let (model, events) = self.take();
        let context = MessageContext::current();
        db.execute(move |tx| -> Work<'_, M> {
            Box::pin(async move {
                let saved = write(model, tx).await?;
                let events = context.sync_scope(|| events(&saved));
                record_or_look(tx, events).await?;
                Ok(saved)
            })
        })
        .await
    }
}

impl<A> AggregateRoot<A>
where
    A: ActiveModelTrait + ActiveModelBehavior + Send + 'static,
    ModelOf<A>: IntoActiveModel<A> + Send + Sync + 'static,
{
    /// As [`SaveWithEvents::insert_with_events`], with the raised events.
    ///
    /// # Errors
    ///
    /// [`SaveError`].
    pub async fn insert<D: Executor>(mut self, db: &D) -> Result<ModelOf<A>, SaveError> {
        let (model, events) = self.take();
        model.insert_with_events(db, events).await
    }

    /// As [`SaveWithEvents::update_with_events`], with the raised events.
    ///
    /// # Errors
    ///
    /// [`SaveError`].
    pub async fn update<D: Executor>(mut self, db: &D) -> Result<ModelOf<A>, SaveError> {
        let (model, events) = self.take();
        model.update_with_events(db, events).await
    }

    /// As [`SaveWithEvents::save_with_events`], with the raised events.
    ///
    /// # Errors
    ///
    /// [`SaveError`].
    pub async fn save<D: Executor>(mut self, db: &D) -> Result<ModelOf<A>, SaveError> {
        let (model, events) = self.take();
        model.save_with_events(db, events).await
    }

    /// As [`SaveWithEvents::delete_with_events`], with the raised events.
    ///
    /// # Errors
    ///
    /// [`SaveError`]; [`SaveError::Unsupported`] after [`Self::raise_with`].
    pub async fn delete<D: Executor>(mut self, db: &D) -> Result<(), SaveError> {
        if !self.later.is_empty() {
            drop(self.take());
            return Err(SaveError::Unsupported {
                why: "a delete has no saved model for `raise_with`; use `raise`",
            });
        }
        let events = std::mem::take(&mut self.events);
        let (model, _) = self.take();
        model.delete_with_events(db, |_| events).await
    }
}

impl<A: ActiveModelTrait, M> Deref for AggregateRoot<A, M> {
    type Target = A;

    fn deref(&self) -> &A {
        self.model
            .as_ref()
            .expect("the model is only taken by methods that consume the aggregate")
    }
}

impl<A: ActiveModelTrait, M> DerefMut for AggregateRoot<A, M> {
    fn deref_mut(&mut self) -> &mut A {
        self.model
            .as_mut()
            .expect("the model is only taken by methods that consume the aggregate")
    }
}

impl<A: ActiveModelTrait, M> Drop for AggregateRoot<A, M> {
    fn drop(&mut self) {
        if !self.events.is_empty() || !self.later.is_empty() {
            tracing::error!(
                events = ?self.events.describe(),
                raised_with = self.later.len(),
                "events were raised and dropped unsaved; save the aggregate, or call `discard_events`"
            );
        }
    }
}
