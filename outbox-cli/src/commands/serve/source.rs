//! What the dashboard finds out about the stream, over the connection settings of the file.
//!
//! Invariant: nothing is received or changed. NATS is connected to once, when it is first asked; the connection is made again by itself.

use async_trait::async_trait;
use outbox::Failure;
use outbox::core::{EventId, Message, StreamSearch as _, describe};
use outbox::inbox::EventOutcomes;
use outbox::nats::JetStreamPublisher;
use outbox::nats::async_nats::Client;
use outbox_admin::doctor::Limits;
use outbox_admin::web::{Examination, InboxView, ProofSpan, Refuses, StreamView, Takers};
use outbox_admin::{
    BrokerCheck, ConsumerRow, LogView, Proof, ProofRequest, ProofStage, Readers, RowsKept, StreamUse,
};
use tokio::sync::{Mutex, OnceCell};

use crate::commands::arguments::PlaceArguments;
use crate::commands::doctor::{self, Closely};
use crate::commands::log_looks::LogLooks;
use crate::commands::log_row;
use crate::commands::place::Place;
use crate::commands::prove::{ProveCommand, rows_kept};
use crate::commands::{readers, recheck, stream, takers, timeline};
use crate::failure::CommandError;
use crate::output::Format;

/// The stream of a place.
pub(super) struct Stream {
    place: Place,
    /// The outboxes of the file, whose databases may hold inboxes. Their sessions only read, as those of the place do.
    places: Vec<Place>,
    client: OnceCell<Client>,
    log: Mutex<LogLooks>,
    /// Bytes that the temporary files of a proof may take.
    proof_disk: u64,
}

impl Stream {
    pub(super) fn new(reading: Place, places: Vec<Place>, proof_disk: u64) -> Self {
        Self {
            place: reading,
            places,
            client: OnceCell::new(),
            log: Mutex::default(),
            proof_disk,
        }
    }

    async fn client(&self) -> Result<Client, Failure> {
        let client = self.client.get_or_try_init(async || self.place.client().await);
        client.await.cloned()
    }

    /// What `outbox prove` would be told.
    fn proving(&self, span: ProofSpan) -> ProveCommand {
        ProveCommand {
            place: PlaceArguments {
                config: None,
                context: None,
                outbox: None,
                timeout: self.place.timeout,
                output: Format::default(),
                quiet: true,
            },
            since: span.since,
            until: span.until,
            consumers: Vec::new(),
            rows_kept: None,
            findings: 20,
        }
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

    async fn refuses(&self) -> Result<Refuses, String> {
        recheck::refuses_by(self.publisher(), self.place.timeout).await
    }

    async fn takers(&self) -> Result<Takers, String> {
        let publisher = self.publisher().await.map_err(|error| error.to_string())?;
        takers::ask(&self.place, &publisher).await
    }

    async fn consumers(&self) -> Result<Vec<ConsumerRow>, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        let (rows, _) = stream::rows(&self.place, client).await.map_err(text)?;
        Ok(rows)
    }

    async fn filled(&self) -> Result<Option<StreamUse>, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        stream::filled(&self.place, client).await.map(Some)
    }

    async fn inboxes(&self, events: &[EventId]) -> Result<InboxView, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        Ok(timeline::inboxes(&self.place, &self.places, client, events).await)
    }

    async fn readers(&self, message: &Message, stream_sequence: u64) -> Result<Readers, String> {
        let client = self.client().await.map_err(|error| error.to_string())?;
        let publisher = self.publisher().await.map_err(|error| error.to_string())?;
        let message = (message, stream_sequence);
        readers::of(&self.place, &self.places, (client, &publisher), message).await
    }

    async fn log(&self) -> Result<Option<LogView>, String> {
        let looked = self.log.lock().await.look(&self.place).await;
        let Some(status) = looked? else {
            return Ok(None);
        };
        let reason = log_row::fault(&status);
        Ok(Some(LogView {
            is_on: status.is_on,
            exists: status.exists,
            is_read: status.is_read,
            stored: status.stored.map(|position| position.0),
            stored_ago: status.stored_ago,
            undecided: status.undecided,
            oldest_undecided: status.oldest_undecided,
            behind_bytes: status.behind_bytes,
            retained_bytes: status.retained_bytes,
            safe_bytes: status.safe_bytes,
            reason,
            name: status.name,
        }))
    }

    fn rows_kept(&self) -> RowsKept {
        rows_kept(None, &self.place)
    }

    async fn prove(
        &self,
        span: ProofSpan,
        progress: &(dyn Fn(ProofStage, u64) + Send + Sync),
    ) -> Result<Proof, String> {
        let command = self.proving(span);
        let mut inboxes = Vec::new();
        for place in self
            .places
            .iter()
            .filter(|place| place.has_stream_of(&self.place))
        {
            let names = place.outbox.table_names().map_err(|error| error.to_string())?;
            inboxes.push(EventOutcomes::new(place.store.connection().clone()).with_names(names));
        }
        let publisher = self.publisher().await.map_err(|error| error.to_string())?;
        let kept = self.rows_kept().or_registered(&self.place.store).await;
        let request = ProofRequest::new(span.since, span.until)
            .rows_kept(kept.map_err(|error| self.place.explain(&error))?)
            .stream(&self.place.outbox.section.stream.name)
            .disk(self.proof_disk);
        let floors =
            async || match tokio::time::timeout(self.place.timeout, command.floors(&self.place)).await {
                Ok(floors) => floors,
                Err(_) => Err(format!("no answer within {:?}", self.place.timeout)),
            };
        let mut tell = |stage: ProofStage, read: u64| progress(stage, read);
        let store = &self.place.store;
        let proof = outbox_admin::prove(store, &publisher, &inboxes, floors, &request, &mut tell).await;
        proof.map_err(|error| self.place.explain(&error))
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
