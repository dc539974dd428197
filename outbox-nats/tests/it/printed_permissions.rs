//! The conformance suites with the printed permissions: each test has its own server, with separate
//! users that create, publish, read and consume. The server's log must show no denied request.

use std::thread::panicking;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use outbox_core::{ConsumerSpec, Message};
use outbox_nats::{JetStreamPublisher, JetStreamSubscriber};
use outbox_testing::conformance::publisher::PublisherFixture;
use outbox_testing::conformance::stream_log::StreamLogFixture;
use outbox_testing::conformance::subscriber::SubscriberFixture;
use outbox_testing::{LogEntry, eventually};
use time::OffsetDateTime;

use crate::environment::{Nats, PLACED, answered, connected, consumer, publish};
use crate::printed_users::{FIXED_SUBJECT, NEWEST, OLDEST, User, Users};
use crate::proxy::Proxy;

const CONSUMERS: [&str; 16] = [
    "all", "c", "c0", "c1", "c2", "c3", "d", "early", "narrow", "new", "one", "repeated", "shared", "timed",
    "two", "widened",
];

const USERS: [User; 6] = [
    User::new("provision", &["provision"]),
    User::new("relay", &["relay"]),
    User::new("strong", &["relay", "strong", "reader"]),
    User::new("reader", &["reader"]),
    User::new("viewer", &["viewer"]),
    // The permissions of `sequence` are also needed to find predecessors and the age of the
    // backlog.
    User::new("consumer", &["consumer", "make-consumer", "sequence"]).of_consumers(&CONSUMERS),
];

struct NothingRefused(Users);

impl Drop for NothingRefused {
    fn drop(&mut self) {
        if !panicking() {
            assert_eq!(
                self.0.refused(),
                [""; 0],
                "a request that the printed permissions do not grant"
            );
        }
    }
}

struct Fixture {
    _users: NothingRefused,
    admin: Nats,
    publisher: JetStreamPublisher,
    reader: JetStreamPublisher,
    subscriber: JetStreamSubscriber,
    proxy: Proxy,
}

impl Fixture {
    async fn new(variable: &'static str) -> Option<Self> {
        Self::with(variable, "relay").await
    }

    async fn fenced(variable: &'static str) -> Option<Self> {
        Self::with(variable, "strong").await
    }

    async fn with(variable: &'static str, publishes: &str) -> Option<Self> {
        let users = Users::start(variable, &USERS).await?;
        let admin = users.nats("admin").await;
        let stream = admin
            .stream_in_mode(publishes == "strong")
            .with_subject(admin.prefix.wildcard())
            .with_subject(FIXED_SUBJECT);
        let provision = users.client("provision").await;
        answered(async || stream.provision_for(&provision, []).await).await;
        let proxy = Proxy::in_front_of(&users.url()).await;
        let options = Users::options(publishes).ignore_discovered_servers();
        let client = connected(proxy.url(), options).await;
        Some(Self {
            publisher: stream.publisher(client).with_config(admin.publisher_config()),
            reader: users.nats("reader").await.publisher(),
            subscriber: users.nats("consumer").await.subscriber(),
            proxy,
            admin,
            _users: NothingRefused(users),
        })
    }
}

impl PublisherFixture for Fixture {
    type Publisher = JetStreamPublisher;

    fn publisher(&self) -> &JetStreamPublisher {
        &self.publisher
    }

    async fn stored(&self) -> Vec<LogEntry> {
        self.admin.log().await
    }

    fn fixed_subject(&self) -> String {
        FIXED_SUBJECT.to_owned()
    }

    fn payload_bytes_too_many(&self) -> usize {
        self.admin.client.server_info().max_payload + 1
    }

    async fn set_available(&self, available: bool) {
        self.proxy.set_available(available);
    }
}

impl StreamLogFixture for Fixture {
    type Log = JetStreamPublisher;

    fn log(&self) -> &JetStreamPublisher {
        &self.reader
    }

    async fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    async fn publish(&self, message: Message) {
        publish(&self.publisher, &message).await;
    }

    async fn publish_foreign(&self) {
        let subject = format!("{}.foreign", self.admin.prefix);
        let context = self.admin.jetstream();
        let sent = context.publish(subject, "foreign".into()).await.unwrap();
        sent.await.unwrap();
    }
}

impl SubscriberFixture for Fixture {
    type Subscriber = JetStreamSubscriber;

    fn subscriber(&self) -> &JetStreamSubscriber {
        &self.subscriber
    }

    async fn publish(&self, message: Message) {
        publish(&self.publisher, &message).await;
    }

    fn ack_wait(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn fixed_subject(&self) -> String {
        FIXED_SUBJECT.to_owned()
    }

    fn gives_again(&self) -> bool {
        !self.admin.client.is_server_compatible(2, 10, 0)
    }
}

mod publisher {
    outbox_testing::publisher_conformance!(
        #[tokio::test]
        super::Fixture::new(super::NEWEST).await
    );
}

mod fenced_publisher {
    outbox_testing::publisher_conformance!(
        #[tokio::test]
        super::Fixture::fenced(super::NEWEST).await
    );
}

mod log {
    outbox_testing::stream_log_conformance!(
        #[tokio::test]
        super::Fixture::new(super::NEWEST).await
    );
}

mod subscriber {
    outbox_testing::subscriber_conformance!(
        #[tokio::test]
        super::Fixture::new(super::NEWEST).await
    );
}

mod subscriber_on_old {
    outbox_testing::subscriber_conformance!(
        #[tokio::test]
        super::Fixture::new(super::OLDEST).await
    );
}

async fn request_of_another_role_is_denied(variable: &'static str) {
    let Some(users) = Users::start(variable, &USERS).await else {
        return;
    };
    let publishes = [
        ("relay", "$JS.API.STREAM.DELETE.EVENTS"),
        ("relay", "$JS.API.CONSUMER.CREATE.EVENTS"),
        ("relay", "other.subject"),
        ("reader", "events.order.1.placed"),
        ("reader", "$JS.API.STREAM.PURGE.EVENTS"),
        ("reader", "$JS.API.CONSUMER.DELETE.EVENTS.billing"),
        ("reader", "$JS.API.CONSUMER.CREATE.EVENTS.billing"),
        ("reader", "$JS.API.CONSUMER.DURABLE.CREATE.EVENTS.billing"),
        ("consumer", "events.order.1.placed"),
        ("consumer", "$JS.API.CONSUMER.CREATE.EVENTS.billing"),
        ("consumer", "$JS.ACK.EVENTS.billing.1"),
        ("provision", "$JS.API.STREAM.DELETE.EVENTS"),
        ("viewer", "events.order.1.placed"),
        ("viewer", "$JS.API.CONSUMER.DELETE.EVENTS.billing"),
        ("viewer", "$JS.API.CONSUMER.MSG.NEXT.EVENTS.billing"),
    ];
    let users_of_streams = ["relay", "reader", "consumer", "viewer"];
    let foreign = ["events.>", "_INBOX.>", "_INBOX.admin.>", "_INBOX.*.*"];
    let subscribes = users_of_streams.map(|user| foreign.map(|subject| (user, subject)));
    let subscribes = subscribes.as_flattened().iter().copied();
    for (user, subject) in publishes {
        let client = users.client(user).await;
        client.publish(subject, "{}".into()).await.unwrap();
        client.flush().await.unwrap();
        refuses(&users, "Publish", user, subject).await;
    }
    for (user, subject) in subscribes {
        let client = users.client(user).await;
        let _open = client.subscribe(subject).await.unwrap();
        client.flush().await.unwrap();
        refuses(&users, "Subscription", user, subject).await;
    }
}

async fn refuses(users: &Users, what: &str, user: &str, subject: &str) {
    let (what, subject) = (format!("{what} Violation"), format!("\"{subject}\""));
    eventually(&format!("{what} of {user}: {subject}"), async || {
        let refused = users.refused();
        refused
            .iter()
            .any(|line| [&*what, user, &*subject].iter().all(|words| line.contains(words)))
    })
    .await;
}

/// A reader creates unnamed consumers. A name in the request must not change a durable consumer.
async fn a_reader_changes_no_durable_consumer(variable: &'static str) {
    let Some(users) = Users::start(variable, &USERS).await else {
        return;
    };
    let admin = users.nats("admin").await;
    let stream = admin.stream().with_subject(admin.prefix.wildcard());
    answered(async || stream.provision_for(&admin.client, []).await).await;
    let spec = ConsumerSpec {
        name: "all".to_owned(),
        ..consumer(&[&PLACED])
    };
    drop(admin.subscribe(&spec).await);
    let before = admin.consumer_info(&spec).await.config;
    let reader = users.nats("reader").await.jetstream();
    for name in ["name", "durable_name"] {
        let config = serde_json::json!({ name: "all", "ack_policy": "none", "filter_subject": "events.x" });
        let request = serde_json::json!({ "stream_name": "EVENTS", "config": config });
        let _: serde_json::Value = reader.request("CONSUMER.CREATE.EVENTS", &request).await.unwrap();
        assert_eq!(admin.consumer_info(&spec).await.config, before, "{name}");
    }
}

#[tokio::test]
async fn a_reader_changes_no_durable_consumer_on_the_newest_server() {
    a_reader_changes_no_durable_consumer(NEWEST).await;
}

#[tokio::test]
async fn a_reader_changes_no_durable_consumer_on_the_oldest_server() {
    a_reader_changes_no_durable_consumer(OLDEST).await;
}

async fn a_viewer_sees_stream_and_consumers(variable: &'static str) {
    let Some(users) = Users::start(variable, &USERS).await else {
        return;
    };
    let admin = users.nats("admin").await;
    let stream = admin.stream().with_subject(admin.prefix.wildcard());
    answered(async || stream.provision_for(&admin.client, []).await).await;
    drop(admin.subscribe(&consumer(&[&PLACED])).await);
    let stream = users
        .nats("viewer")
        .await
        .jetstream()
        .get_stream("EVENTS")
        .await
        .unwrap();
    let listed: Vec<_> = stream.consumers().try_collect().await.unwrap();
    assert_eq!(listed.len(), 1);
    stream.consumer_info(&listed[0].name).await.unwrap();
    assert_eq!(users.refused(), [""; 0]);
}

#[tokio::test]
async fn a_viewer_sees_stream_and_consumers_on_the_newest_server() {
    a_viewer_sees_stream_and_consumers(NEWEST).await;
}

#[tokio::test]
async fn a_viewer_sees_stream_and_consumers_on_the_oldest_server() {
    a_viewer_sees_stream_and_consumers(OLDEST).await;
}

#[tokio::test]
async fn request_of_another_role_is_denied_on_the_newest_server() {
    request_of_another_role_is_denied(NEWEST).await;
}

#[tokio::test]
async fn request_of_another_role_is_denied_on_the_oldest_server() {
    request_of_another_role_is_denied(OLDEST).await;
}
