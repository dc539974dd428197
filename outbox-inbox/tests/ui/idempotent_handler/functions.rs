use outbox_core::DomainEvent;
use outbox_inbox::{Event, HandlerError, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

mod generic_type {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock<T: DomainEvent>(_event: Event<T>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod method {
    use super::*;

    struct Stock;

    impl Stock {
        #[idempotent_handler(consumer = "inventory")]
        async fn reserve(&self, _event: Event<OrderPlaced>) -> Result<(), HandlerError> {
            Ok(())
        }
    }
}

mod no_return_type {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_event: Event<OrderPlaced>) {}
}

mod not_a_function {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    struct ReserveStock;
}

mod not_async {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod unsafe_function {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async unsafe fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

fn main() {}
