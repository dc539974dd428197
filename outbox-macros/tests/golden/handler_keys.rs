#[idempotent_handler(consumer = "billing", strategy = key(order_number))]
async fn charge(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    pay(event).await
}

#[idempotent_handler(consumer = "shipping", strategy = key(OrderPlaced::number))]
async fn ship(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    send(event).await
}

#[idempotent_handler(consumer = "inventory", strategy = constraint("reservations_pkey", "PRIMARY"))]
async fn reserve_stock(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    reserve(event).await
}
