//! Tests of errors that a relay reports at its start.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use outbox_core::{
    Destination, EventPolicy, FailureClass, PublishError, Publisher, Receipt, RelayError, Retention,
};
use outbox_testing::store_methods;
use outbox_testing::store_types::*;

use super::*;

#[tokio::test]
async fn invalid_configurations_are_rejected_at_the_start() {
    let refused = async |config: RelayConfig| {
        let relay = Relay::new(MemoryStore::new(), MemoryBroker::new().publisher()).with_config(config);
        matches!(
            relay.run(CancellationToken::new()).await,
            Err(RelayError::Config(_))
        )
    };
    assert!(refused(RelayConfig::default().lease_ttl(Duration::from_millis(1))).await);
    assert!(refused(RelayConfig::default().poll_max(Duration::ZERO)).await);
    let never = EventPolicy::default().attempts_max(0);
    assert!(refused(RelayConfig::default().policy(never.clone())).await);
    assert!(refused(RelayConfig::default().event_policy("account.credited", never)).await);
    let minute = Retention::KeepFor(Duration::from_secs(60));
    assert!(refused(RelayConfig::default().retention(minute)).await);
    assert!(refused(RelayConfig::default().buffer_bytes(0)).await);
}

#[tokio::test(start_paused = true)]
async fn missing_stream_is_reported_at_the_start() {
    let run = async |class| {
        let relay = Relay::new(MemoryStore::new(), NotSetUp(class)).with_config(quick());
        let shutdown = CancellationToken::new();
        let stop = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            shutdown.cancel();
        };
        tokio::join!(relay.run(shutdown.clone()), stop).0
    };
    let refused = run(FailureClass::Configuration).await;
    assert!(
        matches!(&refused, Err(RelayError::Broker(reason)) if reason.contains("no stream")),
        "{refused:?}"
    );
    assert!(run(FailureClass::Unknown).await.is_ok());
}

struct NotSetUp(FailureClass);

impl Publisher for NotSetUp {
    fn destination(&self) -> Option<Destination> {
        None
    }

    async fn publish(&self, _: &Message) -> Result<Receipt, PublishError> {
        Err(PublishError::new(self.0, "no stream"))
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        Err(PublishError::new(self.0, "no stream"))
    }
}

/// Missing tables must end the relay. If it waited instead, it would log the missing tables only
/// once.
#[tokio::test(start_paused = true)]
async fn missing_tables_end_the_relay_after_an_outage_at_the_start() {
    let store = ComesUp(AtomicU32::new(0));
    let relay = Relay::new(store, MemoryBroker::new().publisher()).with_config(quick());
    let ended = tokio::time::timeout(Duration::from_secs(600), relay.run(CancellationToken::new())).await;
    let error = ended.expect("it ends").unwrap_err();
    assert!(
        matches!(&error, RelayError::Store(StoreError::Setup(problem)) if problem.kind == SetupKind::Tables),
        "{error:?}"
    );
}

/// A broker that has just started may not have loaded its streams yet.
#[tokio::test(start_paused = true)]
async fn broker_down_at_the_start_is_checked_later() {
    let (asked, told) = (Arc::new(AtomicU32::new(0)), Told::default());
    let writer = told.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(move || writer.clone());
    // If only one subscriber exists, tracing caches the decision of the thread that logs first.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _here = tracing::subscriber::set_default(subscriber.finish());
    let relay = Relay::new(MemoryStore::new(), Late(asked.clone())).with_config(quick());
    let shutdown = CancellationToken::new();
    let stop = async {
        while asked.load(Ordering::Relaxed) < 7 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_secs(600)).await;
        shutdown.cancel();
    };
    let (ended, ()) = tokio::time::timeout(Duration::from_secs(1_200), async {
        tokio::join!(relay.run(shutdown.clone()), stop)
    })
    .await
    .expect("it is asked again");
    ended.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 7, "not asked after it was checked");
    let told = String::from_utf8(told.0.lock().unwrap().clone()).unwrap();
    assert_eq!(told.matches("no stream").count(), 1, "{told}");
    assert_eq!(told.matches("the window is short").count(), 1, "{told}");
}

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u8>>>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Late(Arc<AtomicU32>);

impl Publisher for Late {
    fn destination(&self) -> Option<Destination> {
        None
    }

    async fn publish(&self, _: &Message) -> Result<Receipt, PublishError> {
        Err(PublishError::new(FailureClass::Unknown, "away"))
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0..3 => Err(PublishError::new(FailureClass::Unknown, "away")),
            3..6 => Err(PublishError::new(FailureClass::Configuration, "no stream")),
            _ => Ok(vec!["the window is short".to_owned()]),
        }
    }
}

struct ComesUp(AtomicU32);

impl ComesUp {
    fn away<T>(&self) -> Result<T, StoreError> {
        Err(StoreError::Database {
            context: "the database is away",
            source: "connection refused".into(),
        })
    }
}

macro_rules! away {
    ($self:ident, $method:ident($($argument:expr),*)) => {{
        $(let _ = $argument;)*
        $self.away()
    }};
}

impl OutboxStore for ComesUp {
    async fn preflight(&self, _: bool) -> Result<Vec<SetupProblem>, StoreError> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0..3 => self.away(),
            _ => Err(StoreError::setup(SetupKind::Tables, "no tables", "")),
        }
    }

    store_methods!(self, away; announce relays acquire renew release leave fetch fetch_waiting settle purge pauses
        finish_pauses backlog);
}
