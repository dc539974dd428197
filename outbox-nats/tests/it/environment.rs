//! A connection, unique names, and retried requests: on a busy machine, an unanswered or unsent
//! request is retried.

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use outbox_core::{
    Aggregate, ConsumerSpec, Delivery as _, EventDescriptor, FailureClass, Headers, Message, MessageId,
    PublishError, Publisher as _, Receipt, Subscriber as _, SubscriberError, Subscription as _,
};
use outbox_nats::async_nats::jetstream::context::ContextBuilder;
use outbox_nats::async_nats::jetstream::{self, stream};
use outbox_nats::async_nats::{Client, ConnectOptions};
use outbox_nats::{
    EventStream, JetStreamDelivery, JetStreamPublisher, JetStreamSubscriber, JetStreamSubscription,
    ProvisionError, PublisherConfig, SubjectPrefix, connect, connect_options,
};
use outbox_testing::{LogEntry, backend_url};
use tokio::time::{sleep, timeout};

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Timeout for elections of up to 18 s, and for redeliveries after 30 s.
pub(crate) const LONG: Duration = Duration::from_secs(3 * SOON.as_secs());

const OUTCOME_MAX: Duration = Duration::from_secs(3 * LONG.as_secs());

const PAUSE: Duration = Duration::from_millis(20);

pub(crate) static PLACED: EventDescriptor = event("placed", None);
pub(crate) static SHIPPED: EventDescriptor = event("shipped", None);
pub(crate) static CANCELLED: EventDescriptor = event("cancelled", None);

pub(crate) const fn event(name: &'static str, subject: Option<&'static str>) -> EventDescriptor {
    EventDescriptor {
        aggregate: "order",
        name,
        version: 1,
        subject,
        sequenced: true,
        rust_type: "Test",
        file: file!(),
        line: line!(),
    }
}

pub(crate) fn event_on(name: &'static str, subject: String) -> &'static EventDescriptor {
    Box::leak(Box::new(event(name, Some(subject.leak()))))
}

pub(crate) struct Nats {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) prefix: SubjectPrefix,
    shared: Option<String>,
}

impl Nats {
    pub(crate) async fn from_variable(variable: &'static str) -> Option<Self> {
        let url = backend_url(variable)?;
        let mut nats = Self::at(&url).await;
        nats.shared = Some(url);
        Some(nats)
    }

    pub(crate) async fn at(url: &str) -> Self {
        Self::with(connected(url, connect_options()).await)
    }

    pub(crate) fn with(client: Client) -> Self {
        let name = format!("test-{}", MessageId::fresh());
        let prefix = SubjectPrefix::new(name.clone()).unwrap();
        Self {
            client,
            name,
            prefix,
            shared: None,
        }
    }

    pub(crate) fn url(&self) -> &str {
        self.shared.as_deref().unwrap()
    }

    pub(crate) fn jetstream(&self) -> jetstream::Context {
        ContextBuilder::new().timeout(SOON).build(self.client.clone())
    }

    pub(crate) fn stream(&self) -> EventStream {
        EventStream::new(&self.name)
            .with_prefix(self.prefix.as_str())
            .unwrap()
    }

    pub(crate) fn stream_in_mode(&self, strong: bool) -> EventStream {
        match strong {
            true => self.stream().with_strong_mode(),
            false => self.stream(),
        }
    }

    pub(crate) async fn provision(&self) {
        let stream = self.stream();
        answered(async || stream.provision_for(&self.client, [&PLACED, &SHIPPED]).await).await;
    }

    pub(crate) fn publisher(&self) -> JetStreamPublisher {
        self.stream()
            .publisher(self.client.clone())
            .with_config(self.publisher_config())
    }

    pub(crate) fn publisher_config(&self) -> PublisherConfig {
        PublisherConfig::default().source("test").ack_timeout(SOON)
    }

    pub(crate) async fn publish(&self, message: &Message) {
        publish(&self.publisher(), message).await;
    }

    /// With a shorter heartbeat, a rebuilt subscription misses in-flight messages until their
    /// redelivery.
    pub(crate) fn subscriber(&self) -> JetStreamSubscriber {
        let subscriber = self.stream().subscriber(self.client.clone());
        subscriber.idle_heartbeat(Duration::from_secs(15))
    }

    pub(crate) async fn subscribe(&self, consumer: &ConsumerSpec) -> JetStreamSubscription {
        subscribe(&self.subscriber(), consumer).await
    }

    pub(crate) async fn subscribe_impatiently(&self, consumer: &ConsumerSpec) -> JetStreamSubscription {
        let impatient = self.subscriber().idle_heartbeat(Duration::from_millis(500));
        subscribe(&impatient, consumer).await
    }

    pub(crate) async fn consumer_info(&self, spec: &ConsumerSpec) -> jetstream::consumer::Info {
        let stream = self.jetstream().get_stream(&self.name).await.unwrap();
        stream.consumer_info(&spec.name).await.unwrap()
    }

    pub(crate) async fn stream_config(&self) -> stream::Config {
        self.jetstream()
            .get_stream(&self.name)
            .await
            .unwrap()
            .cached_info()
            .config
            .clone()
    }

    pub(crate) async fn last_stream_sequence(&self) -> u64 {
        let stream = self.jetstream().get_stream(&self.name).await.unwrap();
        stream.cached_info().state.last_sequence
    }

    pub(crate) async fn stored(&self) -> Vec<(String, Bytes)> {
        let stream = self.jetstream().get_stream(&self.name).await.unwrap();
        let mut stored = Vec::new();
        for stream_sequence in 1..=stream.cached_info().state.last_sequence {
            let message = stream.get_raw_message(stream_sequence).await.unwrap();
            stored.push((message.subject.to_string(), message.payload));
        }
        stored
    }

    pub(crate) async fn log(&self) -> Vec<LogEntry> {
        let stream = self.jetstream().get_stream(&self.name).await.unwrap();
        let read = async |stream_sequence| {
            let stored = stream.get_raw_message(stream_sequence).await.unwrap();
            let headers: Vec<_> = stored
                .headers
                .iter()
                .flat_map(|(name, values)| {
                    values
                        .iter()
                        .map(move |value| (name.to_string(), value.to_string()))
                })
                .collect();
            LogEntry::decode(
                stream_sequence,
                stored.subject.to_string(),
                &headers,
                stored.payload,
            )
        };
        let stream_sequences = 1..=stream.cached_info().state.last_sequence;
        futures_util::stream::iter(stream_sequences.map(read))
            .buffered(64)
            .collect()
            .await
    }

    pub(crate) async fn delete_stream(&self) {
        self.jetstream().delete_stream(&self.name).await.unwrap();
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let Some(url) = self.shared.take() else { return };
        let name = self.name.clone();
        // `drop` cannot await, and the test's runtime may be gone.
        let deletion = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                if let Ok(client) = connect(url, connect_options()).await {
                    let context = jetstream::new(client);
                    let _ = context.delete_stream(&name).await;
                    let _ = context.delete_stream(format!("KV_{name}")).await;
                }
            });
        });
        let _ = deletion.join();
    }
}

pub(crate) fn message(event: &EventDescriptor, id: &str, sequence: u64) -> Message {
    let message_id = MessageId::fresh();
    Message {
        id: message_id,
        event_id: message_id.into(),
        aggregate: Aggregate::new(event.aggregate, id),
        sequence: Some(sequence),
        event_type: event.event_type(),
        event_version: event.version,
        subject: event.subject.map(str::to_owned),
        content_type: "application/json".to_owned(),
        payload: Bytes::from(format!("{id}/{}/{sequence}", event.name)),
        headers: Headers::default(),
        created_at: time::macros::datetime!(2026-01-02 03:04:05.678901 UTC),
    }
}

pub(crate) fn consumer(events: &[&'static EventDescriptor]) -> ConsumerSpec {
    ConsumerSpec {
        name: "billing".to_owned(),
        events: events.to_vec(),
        ack_wait: Duration::from_secs(30),
        whole_aggregates: false,
        siblings: Vec::new(),
        in_flight_max: 8,
        prefetch: 8,
        start_at: outbox_core::StartAt::Beginning,
    }
}

pub(crate) trait Failure: Debug {
    fn passes(&self) -> bool;
}

impl Failure for ProvisionError {
    fn passes(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

impl Failure for SubscriberError {
    fn passes(&self) -> bool {
        matches!(self, Self::Interrupted { .. })
    }
}

impl Failure for PublishError {
    fn passes(&self) -> bool {
        matches!(self.class(), FailureClass::Unknown | FailureClass::Transient)
    }
}

async fn outcome<T, E: Failure>(mut request: impl AsyncFnMut() -> Result<T, E>) -> Result<T, E> {
    let mut last = None;
    let outcome = async {
        loop {
            match request().await {
                Err(error) if error.passes() => last = Some(error),
                outcome => return outcome,
            }
            sleep(PAUSE).await;
        }
    };
    let waited = timeout(OUTCOME_MAX, outcome).await;
    waited.unwrap_or_else(|_| panic!("no outcome within {OUTCOME_MAX:?}, the last error is {last:?}"))
}

pub(crate) async fn answered<T, E: Failure>(request: impl AsyncFnMut() -> Result<T, E>) -> T {
    outcome(request).await.unwrap()
}

pub(crate) async fn refused<T, E: Failure>(request: impl AsyncFnMut() -> Result<T, E>) -> E {
    outcome(request).await.err().expect("a refusal")
}

pub(crate) async fn connected(servers: impl AsRef<str>, options: ConnectOptions) -> Client {
    let stream = EventStream::default();
    let connected = timeout(LONG, stream.connect_with(servers, options)).await;
    connected.expect("a server that answers").unwrap()
}

/// Publishes with retries, because a publisher waits only 2 s for its first connection.
pub(crate) async fn sent(publisher: &JetStreamPublisher, message: &Message) -> Result<Receipt, PublishError> {
    let sending = async {
        loop {
            match publisher.publish(message).await {
                Err(error) if error.to_string().starts_with("not connected") => sleep(PAUSE).await,
                outcome => return outcome,
            }
        }
    };
    timeout(LONG, sending).await.expect("a connection")
}

pub(crate) async fn publish(publisher: &JetStreamPublisher, message: &Message) -> Receipt {
    sent(publisher, message).await.unwrap()
}

pub(crate) async fn subscribe(
    subscriber: &JetStreamSubscriber,
    consumer: &ConsumerSpec,
) -> JetStreamSubscription {
    answered(async || subscriber.subscribe(consumer).await).await
}

/// Whether the event type is requested. A negative answer takes 3 s, in which the list of requested
/// event types is read repeatedly.
pub(crate) async fn asked_for(delivery: &JetStreamDelivery) -> bool {
    answered(async || delivery.is_asked_for().await).await
}

pub(crate) async fn receive(subscription: &mut JetStreamSubscription) -> JetStreamDelivery {
    let next = async {
        loop {
            match subscription.next().await {
                Ok(delivery) => return delivery,
                Err(SubscriberError::Interrupted { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    timeout(LONG, next).await.expect("a delivery")
}

pub(crate) async fn receive_and_ack(subscription: &mut JetStreamSubscription, count: usize) -> Vec<String> {
    let mut payloads = Vec::new();
    while payloads.len() < count {
        let delivery = receive(subscription).await;
        payloads.push(String::from_utf8(delivery.incoming().payload.to_vec()).unwrap());
        delivery.ack().await.unwrap();
    }
    payloads
}

macro_rules! on_both_servers {
    ($($test:ident,)*) => {
        mod current {
            $(#[tokio::test]
            async fn $test() {
                let Some(nats) = crate::environment::Nats::from_variable("OUTBOX_TEST_NATS_URL").await else { return };
                super::$test(&nats).await;
            })*
        }
        mod old {
            $(#[tokio::test]
            async fn $test() {
                let Some(nats) = crate::environment::Nats::from_variable("OUTBOX_TEST_NATS_OLD_URL").await else { return };
                super::$test(&nats).await;
            })*
        }
    };
}
pub(crate) use on_both_servers;
