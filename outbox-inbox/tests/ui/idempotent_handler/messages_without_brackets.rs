use outbox_inbox::{HandlerError, RawMessage, idempotent_handler};

#[idempotent_handler(consumer = "audit", messages = "order.*")]
async fn keep(_message: RawMessage) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
