use outbox_core::DomainEvent;
use serde::Serialize;

mod empty_enum {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order")]
    enum OrderEvent {}
}

mod generic_constant {
    use super::*;

    #[derive(DomainEvent)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced<const N: usize> {
        #[domain_event(aggregate_id)]
        order_id: u64,
        lines: Vec<[u8; N]>,
    }
}

mod generic_lifetime {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced<'a> {
        #[domain_event(aggregate_id)]
        order_id: &'a str,
    }
}

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

mod no_aggregate_id {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        order_id: u64,
        total_cents: i64,
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

mod no_aggregate_on_enum {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    enum OrderEvent {
        #[domain_event(name = "placed")]
        Placed {
            #[domain_event(aggregate_id)]
            order_id: u64,
        },
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

mod no_name_on_variant {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order")]
    enum OrderEvent {
        #[domain_event(name = "placed")]
        Placed {
            #[domain_event(aggregate_id)]
            order_id: u64,
        },
        OrderClosed(#[domain_event(aggregate_id)] u64),
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

mod two_dedup_keys {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced(
        #[domain_event(aggregate_id)] u64,
        #[domain_event(dedup_key)] String,
        #[domain_event(dedup_key)] String,
    );
}

mod union {
    use super::*;

    #[derive(DomainEvent)]
    #[domain_event(aggregate = "order", name = "placed")]
    union OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
        total_cents: i64,
    }
}

mod unit_struct {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "clock", name = "ticked")]
    struct Ticked;
}

mod unit_variant {
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
        Closed,
    }
}

fn main() {}
