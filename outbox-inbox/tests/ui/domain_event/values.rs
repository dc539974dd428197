use outbox_core::DomainEvent;
use serde::Serialize;

mod codec_in_quotes {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed", codec = "Cbor")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod name_empty {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod name_in_camel_case {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "OrderPlaced")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod name_not_a_literal {
    use super::*;

    const NAME: &str = "placed";

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = NAME)]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod name_too_long {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed_placed_placed_placed_placed_placed_placed_placed_placed_placed_")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod subject_empty {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed", subject = "")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod subject_reserved {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed", subject = "$JS.API")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod subject_with_empty_token {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed", subject = "audit..orders")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod subject_with_space {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed", subject = "audit orders")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

mod subject_with_wildcard {
    use super::*;

    #[derive(DomainEvent, Serialize)]
    #[domain_event(aggregate = "order", name = "placed", subject = "audit.*")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
    }
}

fn main() {}
