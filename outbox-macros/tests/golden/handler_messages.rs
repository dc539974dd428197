#[idempotent_handler(consumer = "audit", messages = ["order.placed", "cart.*", "*"])]
async fn keep(message: RawMessage, tx: Tx<'_>) -> Result<(), HandlerError> {
    store(message, tx).await
}
