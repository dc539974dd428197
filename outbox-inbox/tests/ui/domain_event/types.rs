use outbox_core::DomainEvent;
use serde::Serialize;

mod aggregate_id_of_own_type {
    use super::*;

    #[derive(Serialize)]
    struct OrderId(u64);

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: OrderId,
    }
}

mod aggregate_id_of_unsupported_type {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: Option<u64>,
    }
}

mod dedup_key_without_text {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
        #[domain_event(dedup_key)]
        request: Option<String>,
    }
}

fn main() {}
