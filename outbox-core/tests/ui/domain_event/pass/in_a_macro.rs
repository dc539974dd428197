//! Events may be written by a macro of the user.

use outbox_core::DomainEvent;

macro_rules! event {
    ($ty:ident, $name:literal, $version:expr, $field:ident: $id:ty) => {
        #[derive(DomainEvent, serde::Serialize)]
        #[domain_event(aggregate = "order", name = $name, version = $version)]
        struct $ty {
            #[domain_event(aggregate_id)]
            $field: $id,
        }
    };
}

event!(OrderPlaced, "placed", 1, order_id: u64);
event!(OrderClosed, "closed", 2, number: String);

fn main() {
    assert_eq!(
        OrderPlaced { order_id: 1 }.descriptor().event_type(),
        "order.placed"
    );
    assert_eq!(OrderClosed { number: "1".into() }.descriptor().version, 2);

    // Nor need they stand at the top of a module.
    #[derive(DomainEvent, serde::Serialize)]
    #[domain_event(aggregate = "order", name = "counted")]
    struct Counted(#[domain_event(aggregate_id)] u64);
    assert_eq!(Counted(1).aggregate_id().as_str(), "1");
}
