//! Errors that a relay reports at its start.

use outbox_core::{
    EventPolicy, FailureClass, Message, PublishError, Publisher, Receipt, RelayError, Retention,
};

use super::*;

#[tokio::test]
async fn impossible_configurations_are_refused_at_the_start() {
    let refused = async |config: RelayConfig| {
        let relay = Relay::new(MemoryStore::new(), MemoryBroker::new().publisher()).with_config(config);
        matches!(
            relay.run(CancellationToken::new()).await,
            Err(RelayError::Config(_))
        )
    };
    assert!(refused(RelayConfig::default().window(0)).await);
    assert!(refused(RelayConfig::default().window(1025)).await);
    assert!(refused(RelayConfig::default().lease_ttl(Duration::from_millis(1))).await);
    assert!(refused(RelayConfig::default().poll_min(Duration::ZERO)).await);
    assert!(refused(RelayConfig::default().poll_min(Duration::from_secs(2))).await);
    let never = EventPolicy::default().attempts_max(0);
    assert!(refused(RelayConfig::default().policy(never.clone())).await);
    assert!(refused(RelayConfig::default().event_policy("account.credited", never)).await);
    let minute = Retention::KeepFor(Duration::from_secs(60));
    assert!(refused(RelayConfig::default().retention(minute)).await);
    assert!(refused(RelayConfig::default().buffer_bytes(0)).await);
}

/// An error that needs an operator ends the relay at its start; a transient error does not.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_set_up_is_reported_at_the_start() {
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

/// A publisher whose stream is missing.
struct NotSetUp(FailureClass);

impl Publisher for NotSetUp {
    async fn publish(&self, _: &Message) -> Result<Receipt, PublishError> {
        Err(PublishError::new(self.0, "no stream"))
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        Err(PublishError::new(self.0, "no stream"))
    }
}
