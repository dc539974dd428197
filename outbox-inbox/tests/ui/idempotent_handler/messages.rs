use outbox_inbox::{HandlerError, RawMessage, idempotent_handler};

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

fn main() {}
