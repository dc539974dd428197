#[idempotent_handler(consumer = "mail", crate = ::my_service::inbox)]
#[cfg(feature = "mail")]
#[tracing::instrument]
pub(crate) async fn r#move(Event(event): Event<OrderPlaced>) -> Result<(), MailError> {
    send(event).await
}
