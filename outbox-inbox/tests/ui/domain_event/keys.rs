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

mod codec_on_field {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id, codec = Cbor)]
        order_id: u64,
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

mod misspelt_key {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(agregate = "order", name = "placed")]
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

mod unknown_key {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed", topic = "orders")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

fn main() {}
