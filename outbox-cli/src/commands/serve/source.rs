//! What the dashboard finds out about the stream, over the connection settings of the file.

use async_trait::async_trait;
use outbox::core::{Message, StreamSearch as _, describe};
use outbox_admin::web::StreamView;
use outbox_admin::{BrokerCheck, ConsumerRow};

use crate::commands::consumers;
use crate::commands::place::Place;
use crate::failure::CommandError;

/// The stream of a place. NATS is connected to anew for each question: the dashboard asks seldom.
pub(super) struct Stream(Place);

impl Stream {
    pub(super) fn new(reading: Place) -> Self {
        Self(reading)
    }
}

#[async_trait]
impl StreamView for Stream {
    async fn broker(&self) -> BrokerCheck {
        self.0.broker().await
    }

    async fn locate(&self, message: &Message) -> Result<Option<u64>, String> {
        let publisher = self.0.publisher().await.map_err(|error| error.to_string())?;
        publisher.locate(message).await.map_err(|error| describe(&error))
    }

    async fn consumers(&self) -> Result<Vec<ConsumerRow>, String> {
        let rows = consumers::rows(&self.0).await;
        rows.map_err(|error| match error {
            CommandError::Configuration(failure) | CommandError::Failed(failure) => failure.to_string(),
        })
    }
}
