//! Which codec an event has.

use super::Codec;
use crate::event::DomainEvent;

/// An event whose codec is known. `#[derive(DomainEvent)]` implements it too. By hand it is one line, and only needed for events that handlers take:
///
/// ```
/// # use outbox_core::{AggregateId, DomainEvent, EventDescriptor};
/// # #[derive(serde::Serialize)]
/// # struct OrderPlaced;
/// # impl DomainEvent for OrderPlaced {
/// #     const DESCRIPTORS: &'static [EventDescriptor] = &[];
/// #     fn descriptor(&self) -> &'static EventDescriptor { &Self::DESCRIPTORS[0] }
/// #     fn aggregate_id(&self) -> AggregateId { AggregateId::new("1") }
/// #     fn dedup_key(&self) -> Option<String> { None }
/// # }
/// impl outbox_core::EventCodec for OrderPlaced {
///     type Codec = outbox_core::Json;
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a domain event",
    label = "this type has no `DomainEvent` implementation",
    note = "add `#[derive(DomainEvent)]` and `#[domain_event(aggregate = \"…\", name = \"…\")]` to `{Self}`"
)]
pub trait EventCodec: DomainEvent + Sized {
    /// The codec that [`DomainEvent::encode`] writes with.
    type Codec: Codec;
}
