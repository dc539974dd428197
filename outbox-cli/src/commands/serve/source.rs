//! What the dashboard finds out about the stream, over the connection settings of the file.
//!
//! Invariant: nothing is received or changed. NATS is connected to once, when it is first asked; the connection is made again by itself.

use async_trait::async_trait;
use outbox::Failure;
use outbox::core::{EventId, Message, StreamSearch as _, describe};
use outbox::nats::JetStreamPublisher;
use outbox::nats::async_nats::Client;
use outbox_admin::doctor::Limits;
use outbox_admin::web::{Examination, InboxView, StreamView};
use outbox_admin::{BrokerCheck, ConsumerRow, StreamUse};
use tokio::sync::OnceCell;

use crate::commands::doctor::{self, Closely};
use crate::commands::place::Place;
use crate::commands::{stream, timeline};
use crate::failure::CommandError;

/// The stream of a place.
pub(super) struct Stream {
    place: Place,
    /// The outboxes of the file, whose databases may hold inboxes. Their sessions only read, as those of the place do.
    places: Vec<Place>,
    client: OnceCell<Client>,
}

impl Stream {
    pub(super) fn new(reading: Place, places: Vec<Place>) -> Self {
        Self {
            place: reading,
            places,
            client: OnceCell::new(),
        }
    }

    async fn client(&self) -> Result<Client, Failure> {
        let client = self.client.get_or_try_init(async || self.place.client().await);
        client.await.cloned()
    }

    async fn publisher(&self) -> Result<JetStreamPublisher, Failure> {
        let stream = self.place.outbox.section.stream.event_stream()?;
        Ok(stream.publisher(self.client().await?))
    }
}

/// The error of a command, for people.
fn text(error: CommandError) -> String {
    match error {
        CommandError::Configuration(failure) | CommandError::Failed(failure) => failure.to_string(),
    }
}

#[async_trait]
impl StreamView for Stream {
    async fn broker(&self) -> BrokerCheck {
        self.place.broker_by(self.publisher().await).await
    }

    async fn locate(&self, message: &Message) -> Result<Option<u64>, String> {
        let publisher = self.publisher().await.map_err(|error| error.to_string())?;
        publisher.locate(message).await.map_err(|error| describe(&error))
    }

    async fn consumers(&self) -> Result<Vec<ConsumerRow>, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        stream::rows(&self.place, client).await.map_err(text)
    }

    async fn filled(&self) -> Result<Option<StreamUse>, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        stream::filled(&self.place, client).await.map(Some)
    }

    async fn inboxes(&self, events: &[EventId]) -> Result<InboxView, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        Ok(timeline::inboxes(&self.place, &self.places, client, events).await)
    }

    async fn examine(&self) -> Result<Examination, String> {
        // These sessions cannot write, so whether a relay could is not tried.
        let closely = Closely {
            as_relay: false,
            limits: Limits::default(),
        };
        let mut found = doctor::examine(&self.place, closely).await.map_err(text)?;
        found.unseen.push(
            "tables and rights of the relay's login: the dashboard only reads; `outbox doctor` tries them"
                .to_owned(),
        );
        Ok(found)
    }
}
