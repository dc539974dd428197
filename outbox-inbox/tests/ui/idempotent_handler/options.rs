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

mod batch_too_large {
    use super::*;

    #[idempotent_handler(consumer = "inventory", batch = 5000)]
    async fn reserve_stock(_event: Vec<Event<OrderPlaced>>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod constraint_without_names {
    use super::*;

    #[idempotent_handler(consumer = "inventory", strategy = constraint)]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod consumer_empty {
    use super::*;

    #[idempotent_handler(consumer = "")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod consumer_not_a_literal {
    use super::*;

    const NAME: &str = "inventory";

    #[idempotent_handler(consumer = NAME)]
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

mod consumer_with_dot {
    use super::*;

    #[idempotent_handler(consumer = "inventory.eu")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod crate_in_quotes {
    use super::*;

    #[idempotent_handler(consumer = "inventory", crate = "outbox_inbox")]
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

mod key_without_field {
    use super::*;

    #[idempotent_handler(consumer = "inventory", strategy = key)]
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

mod repeated_key {
    use super::*;

    #[idempotent_handler(consumer = "inventory", consumer = "stock")]
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

mod strategy_with_argument {
    use super::*;

    #[idempotent_handler(consumer = "inventory", strategy = natural(true))]
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

mod unknown_key {
    use super::*;

    #[idempotent_handler(consumer = "inventory", queue = "stock")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod value_without_key {
    use super::*;

    #[idempotent_handler("inventory")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

fn main() {}
