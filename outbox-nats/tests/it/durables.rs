//! Updates of existing durable consumers, and rejected settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::{ConsumerSpec, Subscriber as _, SubscriberError, Subscription as _};
use outbox_nats::JetStreamSubscriber;
use outbox_nats::async_nats::jetstream::consumer::{self as js, AckPolicy, ReplayPolicy, pull};
use outbox_nats::async_nats::jetstream::stream::{Config, RetentionPolicy};
use tracing::Dispatch;
use tracing::subscriber::set_default;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::environment::{
    Nats, PLACED, SHIPPED, consumer, message, on_both_servers, receive_and_ack, refused, subscribe,
};
use crate::private_server::PrivateServer;

on_both_servers! {
    filters_of_a_consumer_are_never_narrowed,
    bounds_of_an_existing_consumer_are_updated,
    limits_that_reject_pull_requests_are_removed,
    the_ack_wait_of_another_version_is_not_lowered,
    replay_at_the_original_speed_is_refused,
    unchangeable_consumer_is_refused,
    silent_streams_are_refused,
}

async fn subscribe_error(subscriber: &JetStreamSubscriber, spec: &ConsumerSpec) -> SubscriberError {
    refused(async || subscriber.subscribe(spec).await).await
}

async fn filters_of_a_consumer_are_never_narrowed(nats: &Nats) {
    nats.provision().await;
    let mut subscription = nats.subscribe(&consumer(&[&PLACED])).await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    receive_and_ack(&mut subscription, 1).await;
    assert_eq!(subscription.stop().await.len(), 0);
    nats.subscribe(&consumer(&[&SHIPPED])).await;
    let mut old_version = nats.subscribe(&consumer(&[&PLACED])).await;
    nats.publish(&message(&PLACED, "1", 2)).await;
    nats.publish(&message(&SHIPPED, "1", 3)).await;
    let mut payloads = receive_and_ack(&mut old_version, 2).await;
    payloads.sort();
    assert_eq!(payloads, ["1/placed/2", "1/shipped/3"]);
}

async fn bounds_of_an_existing_consumer_are_updated(nats: &Nats) {
    nats.provision().await;
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    let foreign = pull::Config {
        durable_name: Some("billing".to_owned()),
        description: Some("of the operator".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(5),
        max_deliver: 3,
        headers_only: true,
        inactive_threshold: Duration::from_mins(5),
        ..pull::Config::default()
    };
    stream.create_consumer(foreign).await.unwrap();
    let spec = ConsumerSpec {
        ack_wait: Duration::from_secs(7),
        in_flight_max: 11,
        ..consumer(&[&PLACED])
    };
    nats.subscribe(&spec).await;
    let config = nats.consumer_info(&spec).await.config;
    assert_eq!(
        (config.ack_wait, config.max_ack_pending, config.max_deliver),
        (spec.ack_wait, 11, -1)
    );
    assert!(!config.headers_only && config.inactive_threshold.is_zero());
    let description = config.description.unwrap();
    assert_eq!(description, "of the operator [asked for: order.placed]");
}

async fn the_ack_wait_of_another_version_is_not_lowered(nats: &Nats) {
    nats.provision().await;
    let spec = |seconds| ConsumerSpec {
        ack_wait: Duration::from_secs(seconds),
        ..consumer(&[&PLACED])
    };
    for (wanted, expected) in [(30, 30), (60, 60), (30, 60)] {
        nats.subscribe(&spec(wanted)).await;
        let seen = nats.consumer_info(&spec(wanted)).await.config.ack_wait;
        assert_eq!(seen, Duration::from_secs(expected), "after {wanted} s");
    }
}

async fn replay_at_the_original_speed_is_refused(nats: &Nats) {
    nats.provision().await;
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    let config = pull::Config {
        durable_name: Some("billing".to_owned()),
        ack_policy: AckPolicy::Explicit,
        replay_policy: ReplayPolicy::Original,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.unwrap();
    let error = subscribe_error(&nats.subscriber(), &consumer(&[&PLACED])).await;
    assert!(matches!(error, SubscriberError::Configuration { .. }), "{error}");
}

async fn unchangeable_consumer_is_refused(nats: &Nats) {
    nats.provision().await;
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    let config = pull::Config {
        durable_name: Some("billing".to_owned()),
        ack_policy: AckPolicy::All,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.unwrap();
    let error = subscribe_error(&nats.subscriber(), &consumer(&[&PLACED])).await;
    assert!(matches!(error, SubscriberError::Configuration { .. }), "{error}");

    let push = js::push::Config {
        durable_name: Some("push".to_owned()),
        deliver_subject: format!("deliver-{}", nats.name),
        ack_policy: AckPolicy::Explicit,
        ..js::push::Config::default()
    };
    stream.create_consumer(push).await.unwrap();
    let error = subscribe_error(
        &nats.subscriber(),
        &ConsumerSpec {
            name: "push".to_owned(),
            ..consumer(&[&PLACED])
        },
    )
    .await;
    assert!(matches!(error, SubscriberError::Configuration { .. }), "{error}");
}

async fn silent_streams_are_refused(nats: &Nats) {
    let missing = subscribe_error(&nats.subscriber(), &consumer(&[&PLACED])).await;
    assert!(
        matches!(missing, SubscriberError::Configuration { .. }),
        "{missing}"
    );
    assert!(missing.to_string().contains("nats stream add"), "{missing}");

    let config = Config {
        name: nats.name.clone(),
        subjects: vec![nats.prefix.filter(&PLACED)],
        ..Config::default()
    };
    nats.jetstream().create_stream(&config).await.unwrap();
    let uncaptured = subscribe_error(&nats.subscriber(), &consumer(&[&PLACED, &SHIPPED])).await;
    assert!(
        matches!(uncaptured, SubscriberError::Configuration { .. }),
        "{uncaptured}"
    );
    assert!(
        uncaptured.to_string().contains(&nats.prefix.filter(&SHIPPED)),
        "{uncaptured}"
    );
    nats.delete_stream().await;

    let config = Config {
        retention: RetentionPolicy::WorkQueue,
        ..config
    };
    nats.jetstream().create_stream(config).await.unwrap();
    let retention = subscribe_error(&nats.subscriber(), &consumer(&[&PLACED])).await;
    assert!(
        matches!(retention, SubscriberError::Configuration { .. }),
        "{retention}"
    );
}

#[tokio::test]
async fn server_without_jetstream_is_named() {
    let Some(server) = PrivateServer::start_without_jetstream().await else {
        return;
    };
    let nats = Nats::at(&server.url()).await;
    let error = nats.subscriber().subscribe(&consumer(&[&PLACED])).await;
    let error = error.expect_err("no JetStream").to_string();
    assert!(
        error.contains("JetStream is not enabled; start nats-server with `-js`"),
        "{error}"
    );
}

#[derive(Debug, Clone, Default)]
struct Log(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().fields().field("other").is_some() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test]
async fn consumer_metadata_names_the_last_service() {
    let Some(nats) = Nats::from_variable("OUTBOX_TEST_NATS_URL").await else {
        return;
    };
    nats.provision().await;
    let spec = consumer(&[&PLACED]);
    let log = Log::default();
    // With a single dispatcher, tracing would cache whether the first thread logs an event, and
    // skip the event in other threads.
    let _second = Dispatch::new(tracing_subscriber::registry());
    let _listening = set_default(tracing_subscriber::registry().with(log.clone()));
    for (service, warnings) in [("shop", 0), ("mail", 1), ("mail", 1)] {
        drop(subscribe(&nats.subscriber().service(service), &spec).await);
        let metadata = nats.consumer_info(&spec).await.config.metadata;
        assert_eq!(metadata["outbox-service"], service);
        assert_eq!(log.0.load(Ordering::Relaxed), warnings, "{service}");
    }
}

/// With these limits of the consumer, the server would reject each pull request.
async fn limits_that_reject_pull_requests_are_removed(nats: &Nats) {
    nats.provision().await;
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    let foreign = pull::Config {
        durable_name: Some("billing".to_owned()),
        ack_policy: AckPolicy::Explicit,
        max_batch: 1,
        max_expires: Duration::from_millis(100),
        ..pull::Config::default()
    };
    stream.create_consumer(foreign).await.unwrap();
    let spec = consumer(&[&PLACED]);
    let mut subscription = nats.subscribe(&spec).await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    assert_eq!(receive_and_ack(&mut subscription, 1).await, ["1/placed/1"]);
    let config = nats.consumer_info(&spec).await.config;
    assert_eq!((config.max_batch, config.max_expires), (0, Duration::ZERO));
}
