use outbox_core::DomainEvent;
use outbox_inbox::{Event, HandlerError, RawMessage, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

mod backoff_backwards {
    use super::*;

    #[idempotent_handler(consumer = "inventory", backoff = "5m..1s")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod consumer_too_long {
    use super::*;

    #[idempotent_handler(consumer = "inventory-inventory-inventory-inventory-inventory-inventory-inventory-")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod gap_is_no_time {
    use super::*;

    #[idempotent_handler(consumer = "inventory", strategy = sequence(gap = "half a minute"))]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod messages_empty {
    use super::*;

    #[idempotent_handler(consumer = "audit", messages = [])]
    async fn keep(_message: RawMessage) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod messages_with_key {
    use super::*;

    #[idempotent_handler(consumer = "audit", messages = ["*"], strategy = key(number))]
    async fn keep(_message: RawMessage) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod messages_without_a_dot {
    use super::*;

    #[idempotent_handler(consumer = "audit", messages = ["order"])]
    async fn keep(_message: RawMessage) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod messages_without_brackets {
    use super::*;

    #[idempotent_handler(consumer = "audit", messages = "order.*")]
    async fn keep(_message: RawMessage) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod misspelt_key {
    use super::*;

    #[idempotent_handler(consumr = "inventory")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod no_consumer {
    use super::*;

    #[idempotent_handler]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod order_none_with_sequence {
    use super::*;

    #[idempotent_handler(consumer = "inventory", strategy = sequence, order = none)]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod strategy_unknown {
    use super::*;

    #[idempotent_handler(consumer = "inventory", strategy = mesage_id)]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod timeout_without_unit {
    use super::*;

    #[idempotent_handler(consumer = "inventory", timeout = "30")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

fn main() {}
