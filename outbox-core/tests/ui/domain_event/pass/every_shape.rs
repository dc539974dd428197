//! Each supported shape, and what its implementation answers.

#![allow(non_camel_case_types, clippy::unwrap_used)]

use outbox_core::{AggregateId, Catalogue, DomainEvent, EventDescriptor, ToAggregateId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 2)]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: Uuid,
    #[domain_event(dedup_key)]
    request: String,
    total_cents: i64,
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "closed", subject = "audit.closed", unsequenced)]
struct OrderClosed(u8, #[domain_event(aggregate_id, dedup_key)] i64);

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "customer", version = 3, unsequenced)]
enum CustomerEvent {
    #[domain_event(name = "moved", version = 4)]
    Moved {
        #[domain_event(aggregate_id)]
        r#type: String,
    },
    #[domain_event(name = "left")]
    Left(
        u8,
        #[domain_event(aggregate_id)] &'static str,
        #[domain_event(dedup_key)] char,
    ),
    #[domain_event(aggregate = "shop", name = "opened", subject = "shops")]
    ShopOpened(#[domain_event(aggregate_id)] u64),
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "raw", name = "identifier")]
struct r#struct {
    #[domain_event(aggregate_id)]
    r#type: u64,
}

#[derive(Serialize)]
struct ParcelId(u32);

impl ToAggregateId for ParcelId {
    fn to_aggregate_id(&self) -> AggregateId {
        self.0.to_aggregate_id()
    }
}

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "parcel", name = "sent")]
struct ParcelSent(#[domain_event(aggregate_id)] ParcelId);

fn main() {
    let order_id = Uuid::from_u128(7);
    let placed = OrderPlaced {
        order_id,
        request: "r-1".into(),
        total_cents: 1,
    };
    let expected = EventDescriptor {
        aggregate: "order",
        name: "placed",
        version: 2,
        subject: None,
        sequenced: true,
        rust_type: concat!(module_path!(), "::OrderPlaced"),
        file: file!(),
        line: 11,
    };
    assert_eq!(OrderPlaced::DESCRIPTORS, [expected]);
    assert_eq!(*placed.descriptor(), expected);
    assert_eq!(placed.aggregate_id().as_str(), order_id.to_string());
    assert_eq!(placed.dedup_key().as_deref(), Some("r-1"));

    let closed = OrderClosed(1, -2);
    assert_eq!(closed.descriptor().subject, Some("audit.closed"));
    assert!(!closed.descriptor().sequenced);
    assert_eq!(closed.aggregate_id().as_str(), "-2");
    assert_eq!(closed.dedup_key().as_deref(), Some("-2"));

    let moved = CustomerEvent::Moved { r#type: "a".into() };
    assert_eq!(
        (moved.descriptor().event_type(), moved.descriptor().version),
        ("customer.moved".into(), 4)
    );
    assert_eq!(
        moved.descriptor().rust_type,
        concat!(module_path!(), "::CustomerEvent::Moved")
    );
    assert!(!moved.descriptor().sequenced);
    assert_eq!(moved.aggregate_id().as_str(), "a");
    assert_eq!(moved.dedup_key(), None);

    let left = CustomerEvent::Left(0, "b", 'x');
    assert_eq!(
        (left.descriptor().event_type(), left.descriptor().version),
        ("customer.left".into(), 3)
    );
    assert_eq!(left.descriptor().line, 32);
    assert_eq!(left.aggregate_id().as_str(), "b");
    assert_eq!(left.dedup_key().as_deref(), Some("x"));

    let opened = CustomerEvent::ShopOpened(9);
    assert_eq!(opened.descriptor().event_type(), "shop.opened");
    assert_eq!(opened.descriptor().subject, Some("shops"));
    assert_eq!(opened.aggregate_id().as_str(), "9");

    assert_eq!(
        r#struct { r#type: 1 }.descriptor().rust_type,
        concat!(module_path!(), "::struct")
    );

    assert_eq!(ParcelSent(ParcelId(7)).aggregate_id().as_str(), "7");

    let linked: Vec<String> = Catalogue::linked()
        .unwrap()
        .iter()
        .map(EventDescriptor::event_type)
        .collect();
    let expected = [
        "customer.left",
        "customer.moved",
        "order.closed",
        "order.placed",
        "parcel.sent",
        "raw.identifier",
        "shop.opened",
    ];
    assert_eq!(linked, expected);
}
