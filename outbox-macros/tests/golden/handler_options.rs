#[idempotent_handler(
    consumer = "inventory",
    strategy = sequence(gap = "30s"),
    order = strict,
    batch = 100,
    attempts = 5,
    backoff = "250ms..5m",
    timeout = "20s",
)]
async fn reserve_stock(events: Vec<Event<OrderPlaced>>) -> Result<(), HandlerError> {
    reserve(events).await
}
