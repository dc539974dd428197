use outbox_core::{DomainEvent, Events, IntoEvents};
use outbox_inbox::{Emit, Event, HandlerError, Tx, idempotent_handler};
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

mod conditional_argument {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(
        _event: Event<OrderPlaced>,
        #[cfg(unix)] _tx: Tx<'_>,
    ) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod const_function {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    const fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod generic_lifetime {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock<'a>(_event: Event<OrderPlaced>, _tx: Tx<'a>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod generic_type {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock<T: DomainEvent>(_event: Event<T>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod impl_trait_argument {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_event: Event<impl DomainEvent>) -> Result<(), HandlerError> {
        Ok(())
    }
}

mod impl_trait_returned {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> Result<Emit<impl IntoEvents>, HandlerError> {
        Ok(Emit(Events::new()))
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

mod no_arguments {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock() -> Result<(), HandlerError> {
        Ok(())
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

mod unit_return_type {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async fn reserve_stock(_event: Event<OrderPlaced>) -> () {}
}

mod unsafe_function {
    use super::*;

    #[idempotent_handler(consumer = "inventory")]
    async unsafe fn reserve_stock(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
        Ok(())
    }
}

fn main() {}
