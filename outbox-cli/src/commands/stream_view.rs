//! Stream access for commands and the dashboard.
//!
//! NATS is connected once, on demand, and reconnects by itself.

use crate::admin::doctor::StreamFacts;
use crate::admin::{
    BrokerCheck, ConsumerRow, InboxView, Readers, Reason, Refuses, RowsKept, StreamView, answered, effects,
};
use async_trait::async_trait;
use outbox::Failure;
use outbox::core::{EventId, Message, Publisher as _, StreamSearch as _, describe};
use outbox::nats::JetStreamPublisher;
use outbox::nats::async_nats::Client;
use tokio::sync::OnceCell;

use super::arguments::FileArguments;
use super::place::Place;
use super::prove::rows_kept;
use super::relay::log;
use super::{readers, recheck, stream};
use crate::failure::CommandError;

pub(super) struct Stream {
    place: Place,
    file: FileArguments,
    /// Outboxes of the file on this stream, as read-only sessions.
    places: OnceCell<Vec<Place>>,
    client: OnceCell<Client>,
}

impl Stream {
    pub(super) fn new(place: &Place, file: &FileArguments) -> Self {
        Self {
            place: place.clone(),
            file: file.clone(),
            places: OnceCell::new(),
            client: OnceCell::new(),
        }
    }

    async fn places(&self) -> Result<&[Place], String> {
        let open = async || Place::open_all_with_stream_of(&self.place, &self.file).await;
        let places = self.places.get_or_try_init(open).await.map_err(text)?;
        Ok(places)
    }

    async fn client(&self) -> Result<Client, Failure> {
        let client = self.client.get_or_try_init(async || self.place.client().await);
        client.await.cloned()
    }

    /// As [`StreamView::consumers`], but observes doubtful consumers again.
    pub(super) async fn watched(&self) -> Result<Vec<ConsumerRow>, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        stream::watched(&self.place, client).await.map_err(text)
    }

    async fn publisher(&self) -> Result<JetStreamPublisher, Failure> {
        let stream = self.place.outbox.section.stream.event_stream()?;
        Ok(stream.publisher(self.client().await?))
    }
}

pub(super) async fn inboxes(
    place: &Place,
    places: &[Place],
    client: Client,
    events: &[EventId],
) -> InboxView {
    let mut view = InboxView::default();
    match answered(place.timeout, stream::durables(place, client)).await {
        Ok(durables) => {
            let floors = durables.into_iter();
            view.floors = floors
                .map(|durable| (durable.name, durable.ack_floor.stream_sequence))
                .collect();
        }
        Err(error) => view.unseen.push(format!("consumers of the stream: {error}")),
    }
    let consumers: Vec<String> = view.floors.iter().map(|(consumer, _)| consumer.clone()).collect();
    if consumers.is_empty() {
        return view;
    }
    for other in places {
        let db = other.store.connection();
        let found = match other.outbox.table_names() {
            Ok(names) => {
                let table = names.table(db.get_database_backend(), "inbox_messages");
                other.ask(effects(db, &table, &consumers, events)).await
            }
            Err(error) => Err(CommandError::configuration(error)),
        };
        match found {
            Ok(found) => view.rows.extend(found),
            Err(error) => view.unseen.push(format!("inboxes: {}", text(error))),
        }
    }
    view
}

pub(super) fn text(error: CommandError) -> String {
    error.to_string()
}

#[async_trait]
impl StreamView for Stream {
    async fn broker(&self) -> BrokerCheck {
        let away = |error: String| BrokerCheck::Failed(format!("cannot reach nats from this host: {error}"));
        let publisher = match self.publisher().await {
            Ok(publisher) => publisher,
            Err(error) => return away(error.to_string()),
        };
        match tokio::time::timeout(self.place.timeout, publisher.preflight()).await {
            Ok(Ok(warnings)) => BrokerCheck::Checked(warnings),
            Ok(Err(error)) => BrokerCheck::Failed(describe(&error)),
            Err(_) => away(format!("no answer within {:?}", self.place.timeout)),
        }
    }

    async fn locate(&self, message: &Message) -> Result<Option<u64>, String> {
        let publisher = self.publisher().await.map_err(|error| error.to_string())?;
        publisher.locate(message).await.map_err(|error| describe(&error))
    }

    async fn refuses(&self) -> Result<Refuses, String> {
        recheck::refuses(self.publisher()).await
    }

    async fn consumers(&self) -> Result<Vec<ConsumerRow>, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        stream::rows(&self.place, client).await.map_err(text)
    }

    async fn filled(&self) -> Result<Option<StreamFacts>, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        stream::filled(&self.place, client).await.map(Some)
    }

    async fn inboxes(&self, events: &[EventId]) -> Result<InboxView, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        Ok(inboxes(&self.place, self.places().await?, client, events).await)
    }

    async fn readers(&self, message: &Message, stream_sequence: u64) -> Result<Readers, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        let publisher = self.publisher().await.map_err(|error| error.to_string())?;
        let message = (message, stream_sequence);
        readers::of(&self.place, self.places().await?, (client, &publisher), message).await
    }

    async fn log(&self) -> Result<Option<Reason>, String> {
        let row = log::row_of(&self.place).await.map_err(text)?;
        Ok(row.and_then(|row| row.next))
    }

    fn rows_kept(&self) -> RowsKept {
        rows_kept(&self.place)
    }
}
