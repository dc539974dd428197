//! The conformance suites of the broker traits, on both test servers.

use std::time::Duration;

use outbox_core::Message;
use outbox_nats::{JetStreamPublisher, JetStreamSubscriber, connect_options};
use outbox_testing::LogEntry;
use outbox_testing::backend_url;
use outbox_testing::conformance::publisher::PublisherFixture;
use outbox_testing::conformance::stream_log::StreamLogFixture;
use outbox_testing::conformance::subscriber::SubscriberFixture;
use time::OffsetDateTime;

use crate::environment::{Nats, answered, connected, publish};
use crate::proxy::Proxy;

struct Fixture {
    nats: Nats,
    publisher: JetStreamPublisher,
    subscriber: JetStreamSubscriber,
    proxy: Proxy,
}

impl Fixture {
    async fn new(variable: &'static str) -> Option<Self> {
        Self::with(variable, false).await
    }

    async fn fenced(variable: &'static str) -> Option<Self> {
        Self::with(variable, true).await
    }

    async fn with(variable: &'static str, fenced: bool) -> Option<Self> {
        let nats = Nats::from_variable(variable).await?;
        let stream = nats
            .stream_in_mode(fenced)
            .with_subject(nats.prefix.wildcard())
            .with_subject(fixed_subject(&nats));
        answered(async || stream.provision_for(&nats.client, []).await).await;
        let proxy = Proxy::in_front_of(&backend_url(variable)?).await;
        // The server may report its own address, which would bypass the proxy.
        let client = connected(proxy.url(), connect_options().ignore_discovered_servers()).await;
        let publisher = stream.publisher(client).with_config(nats.publisher_config());
        let subscriber = nats.subscriber();
        Some(Self {
            nats,
            publisher,
            subscriber,
            proxy,
        })
    }
}

fn fixed_subject(nats: &Nats) -> String {
    format!("fixed-{}.subject", nats.name)
}

impl PublisherFixture for Fixture {
    type Publisher = JetStreamPublisher;

    fn publisher(&self) -> &JetStreamPublisher {
        &self.publisher
    }

    async fn stored(&self) -> Vec<LogEntry> {
        self.nats.log().await
    }

    fn fixed_subject(&self) -> String {
        fixed_subject(&self.nats)
    }

    fn payload_bytes_too_many(&self) -> usize {
        self.nats.client.server_info().max_payload + 1
    }

    async fn set_available(&self, available: bool) {
        self.proxy.set_available(available);
    }
}

impl StreamLogFixture for Fixture {
    type Log = JetStreamPublisher;

    fn log(&self) -> &JetStreamPublisher {
        &self.publisher
    }

    async fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    async fn publish(&self, message: Message) {
        publish(&self.publisher, &message).await;
    }

    async fn publish_foreign(&self) {
        let subject = format!("{}.foreign", self.nats.prefix);
        let context = self.nats.jetstream();
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
        self.nats.publish(&message).await;
    }

    fn ack_wait(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn fixed_subject(&self) -> String {
        fixed_subject(&self.nats)
    }

    /// Whether the server may deliver twice: 2.9 rarely does, when a pull request ends with
    /// messages in flight.
    fn gives_again(&self) -> bool {
        !self.nats.client.is_server_compatible(2, 10, 0)
    }
}

mod publisher_on_current {
    outbox_testing::publisher_conformance!(
        #[tokio::test]
        super::Fixture::new("OUTBOX_TEST_NATS_URL").await
    );
}

mod publisher_on_old {
    outbox_testing::publisher_conformance!(
        #[tokio::test]
        super::Fixture::new("OUTBOX_TEST_NATS_OLD_URL").await
    );
}

mod fenced_publisher_on_current {
    outbox_testing::publisher_conformance!(
        #[tokio::test]
        super::Fixture::fenced("OUTBOX_TEST_NATS_URL").await
    );
}

mod fenced_publisher_on_old {
    outbox_testing::publisher_conformance!(
        #[tokio::test]
        super::Fixture::fenced("OUTBOX_TEST_NATS_OLD_URL").await
    );
}

mod log_on_current {
    outbox_testing::stream_log_conformance!(
        #[tokio::test]
        super::Fixture::new("OUTBOX_TEST_NATS_URL").await
    );
}

mod log_on_old {
    outbox_testing::stream_log_conformance!(
        #[tokio::test]
        super::Fixture::new("OUTBOX_TEST_NATS_OLD_URL").await
    );
}

mod subscriber_on_current {
    outbox_testing::subscriber_conformance!(
        #[tokio::test]
        super::Fixture::new("OUTBOX_TEST_NATS_URL").await
    );
}

mod subscriber_on_old {
    outbox_testing::subscriber_conformance!(
        #[tokio::test]
        super::Fixture::new("OUTBOX_TEST_NATS_OLD_URL").await
    );
}
