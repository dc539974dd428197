#[idempotent_handler(consumer = "in.ventory")]
pub fn reserve_stock<T>(event: Event<T>) {
    drop(event)
}
