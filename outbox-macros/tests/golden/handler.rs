/// Takes the ordered articles out of stock.
#[idempotent_handler(consumer = "inventory")]
async fn reserve_stock(event: Event<OrderPlaced>, tx: Tx<'_>, outbox: Outbox<'_>) -> Result<(), HandlerError> {
    tx.execute(event).await?;
    outbox.record(StockReserved).await
}
