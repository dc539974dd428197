use outbox_core::DomainEvent;
use serde::Serialize;

mod generic_type {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced<T: Serialize> {
        #[domain_event(aggregate_id)]
        order_id: T,
    }
}

mod no_aggregate {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod no_aggregate_id_on_variant {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order")]
    enum OrderEvent {
        #[domain_event(name = "placed")]
        Placed {
            #[domain_event(aggregate_id)]
            order_id: u64,
        },
        #[domain_event(name = "closed")]
        Closed { order_id: u64 },
    }
}

mod no_aggregate_on_variant {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    enum OrderEvent {
        #[domain_event(aggregate = "order", name = "placed")]
        Placed(#[domain_event(aggregate_id)] u64),
        #[domain_event(name = "warned")]
        Warned(#[domain_event(aggregate_id)] u64),
    }
}

mod no_name {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod same_event_twice {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order")]
    enum OrderEvent {
        #[domain_event(name = "placed")]
        Placed {
            #[domain_event(aggregate_id)]
            order_id: u64,
        },
        #[domain_event(name = "placed", version = 2)]
        PlacedV2(#[domain_event(aggregate_id)] u64),
        #[domain_event(name = "placed")]
        PlacedAgain(#[domain_event(aggregate_id)] u64),
    }
}

mod two_aggregate_ids {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
        #[domain_event(aggregate_id)]
        customer_id: u64,
    }
}

fn main() {}
