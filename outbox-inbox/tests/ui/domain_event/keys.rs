use outbox_core::DomainEvent;
use serde::Serialize;

mod aggregate_id_on_struct {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed", aggregate_id = "order_id")]
    struct OrderPlaced {
        order_id: u64,
    }
}

mod aggregate_id_on_variant {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order")]
    enum OrderEvent {
        #[domain_event(name = "closed", aggregate_id)]
        Closed(u64),
    }
}

mod aggregate_on_field {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id, aggregate = "order")]
        order_id: u64,
    }
}

mod attribute_without_keys {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod codec_on_field {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id, codec = Cbor)]
        order_id: u64,
    }
}

mod crate_on_variant {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order")]
    enum OrderEvent {
        #[domain_event(name = "closed", crate = outbox_core)]
        Closed(#[domain_event(aggregate_id)] u64),
    }
}

mod flag_with_value {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed", unsequenced = true)]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod forgotten_comma {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order" name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod key_without_value {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name)]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod literal_for_key {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event("order.placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod misspelt_key {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(agregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod name_on_enum {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    enum OrderEvent {
        Placed(#[domain_event(aggregate_id)] u64),
    }
}

mod name_on_field_of_variant {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order")]
    enum OrderEvent {
        Closed(#[domain_event(aggregate_id, name = "closed")] u64),
    }
}

mod repeated_key {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    #[domain_event(name = "paid")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod sensitive_flattened {
    use super::*;

    #[derive(Serialize)]
    struct Address {
        street: String,
    }

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
        #[domain_event(sensitive)]
        #[serde(flatten)]
        address: Address,
    }
}

mod subject_on_enum {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", subject = "audit.orders")]
    enum OrderEvent {
        #[domain_event(name = "placed")]
        Placed {
            #[domain_event(aggregate_id)]
            order_id: u64,
        },
    }
}

mod unknown_key {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed", topic = "orders")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod unknown_key_on_field {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(id)]
        order_id: u64,
    }
}

fn main() {}
