//! An active model that collects the events of its domain methods.
//!
//! Invariant: raised events leave the wrapper only through a save, or by `discard_events`. If it is dropped with events in it, the events
//! are lost; an error with their names is logged.

use std::ops::{Deref, DerefMut};

use outbox_core::{Events, IntoMessage};
use sea_orm::{ActiveModelBehavior, ActiveModelTrait, IntoActiveModel};

use crate::error::SaveError;
use crate::execute::Executor;
use crate::save::{ModelOf, SaveWithEvents};

/// An active model and the events raised on it.
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
/// # #[derive(DomainEvent, serde::Serialize)] #[domain_event(aggregate = "order", name = "shipped")]
/// # struct OrderShipped { #[domain_event(aggregate_id)] order_id: i32 }
/// # async fn demo(db: sea_orm::DatabaseConnection, order: order::Model) -> Result<(), Box<dyn std::error::Error>> {
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
#[derive(Debug)]
#[must_use = "raised events are lost unless the aggregate is saved"]
pub struct AggregateRoot<A> {
    // `None` only while a save takes it.
    model: Option<A>,
    events: Events,
}

impl<A> AggregateRoot<A> {
    /// Wraps an active model.
    pub fn new(model: A) -> Self {
        Self {
            model: Some(model),
            events: Events::new(),
        }
    }

    /// Raises an event. It is encoded now, with the ambient [`MessageContext`](outbox_core::MessageContext), and recorded by the save.
    pub fn raise(&mut self, event: impl IntoMessage) {
        self.events.push(event);
    }

    /// The events raised so far.
    #[must_use]
    pub fn raised(&self) -> &Events {
        &self.events
    }

    /// Discards the raised events, and returns the model.
    pub fn discard_events(mut self) -> A {
        self.take().0
    }

    fn take(&mut self) -> (A, Events) {
        let model = self
            .model
            .take()
            .expect("the model is only taken by methods that consume the aggregate");
        (model, std::mem::take(&mut self.events))
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
    /// [`SaveError`]. Model and events are consumed all the same, as by SeaORM's own methods.
    pub async fn insert<D: Executor>(mut self, db: &D) -> Result<ModelOf<A>, SaveError> {
        let (model, events) = self.take();
        model.insert_with_events(db, |_| events).await
    }

    /// As [`SaveWithEvents::update_with_events`], with the raised events.
    ///
    /// # Errors
    ///
    /// [`SaveError`]. Model and events are consumed all the same, as by SeaORM's own methods.
    pub async fn update<D: Executor>(mut self, db: &D) -> Result<ModelOf<A>, SaveError> {
        let (model, events) = self.take();
        model.update_with_events(db, |_| events).await
    }

    /// As [`SaveWithEvents::save_with_events`], with the raised events.
    ///
    /// # Errors
    ///
    /// [`SaveError`]. Model and events are consumed all the same, as by SeaORM's own methods.
    pub async fn save<D: Executor>(mut self, db: &D) -> Result<ModelOf<A>, SaveError> {
        let (model, events) = self.take();
        model.save_with_events(db, |_| events).await
    }

    /// As [`SaveWithEvents::delete_with_events`], with the raised events.
    ///
    /// # Errors
    ///
    /// [`SaveError`]. Model and events are consumed all the same, as by SeaORM's own methods.
    pub async fn delete<D: Executor>(mut self, db: &D) -> Result<(), SaveError> {
        let (model, events) = self.take();
        model.delete_with_events(db, |_| events).await
    }
}

impl<A> Deref for AggregateRoot<A> {
    type Target = A;

    fn deref(&self) -> &A {
        self.model
            .as_ref()
            .expect("the model is only taken by methods that consume the aggregate")
    }
}

impl<A> DerefMut for AggregateRoot<A> {
    fn deref_mut(&mut self) -> &mut A {
        self.model
            .as_mut()
            .expect("the model is only taken by methods that consume the aggregate")
    }
}

impl<A> Drop for AggregateRoot<A> {
    fn drop(&mut self) {
        if !self.events.is_empty() {
            tracing::error!(
                events = ?self.events.describe(),
                "events were raised and dropped unsaved; save the aggregate, or call `discard_events`"
            );
        }
    }
}
