use outbox_core::DomainEvent;
use outbox_inbox::{Event, HandlerError, Tx, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

mod argument_of_unsupported_type {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_event: Event<OrderPlaced>, _stock: Vec<u32>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod bare_event {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_event: OrderPlaced) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod boxed_error {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Err("as with anyhow".into())
    }
}

mod error_of_unsupported_type {
    use super::*;

    struct NotAnError;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), NotAnError> {
        Err(NotAnError)
    }
}

mod event_not_first {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_tx: Tx<'_>, _event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod event_without_derive {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct OrderPaid;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_event: Event<OrderPaid>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod key_function_of_another_event {
    use super::*;

    struct OrderCancelled;

    fn order_number(_event: &OrderCancelled) -> u64 {
        7
    }

    #[idempotent_handler(consumer = "inventory", strategy = key(self::order_number))]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod key_function_without_text {
    use super::*;

    impl OrderPlaced {
        fn lines(&self) -> Vec<u64> {
            vec![self.order_id]
        }
    }

    #[idempotent_handler(consumer = "inventory", strategy = key(OrderPlaced::lines))]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod key_is_not_text {
    use super::*;

    #[derive(DomainEvent, Serialize, Deserialize)]
    #[domain_event(aggregate = "order", name = "placed")]
    struct OrderPlaced {
        #[domain_event(aggregate_id)]
        order_id: u64,
        voucher: Option<String>,
    }

    #[idempotent_handler(consumer = "inventory", strategy = key(voucher))]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod key_of_unknown_field {
    use super::*;

    #[idempotent_handler(consumer = "inventory", strategy = key(order_number))]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod result_with_a_value {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<u32, HandlerError> {
        Ok(1)
    }
}

mod wrong_return_type {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Option<()> {
        None
    }
}

fn main() {}
