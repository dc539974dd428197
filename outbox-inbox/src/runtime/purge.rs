//! Decides whether the inbox may delete expired rows.
//!
//! Invariant: if the stream has a retention, no row is deleted while its message can be
//! redelivered.

use outbox_core::Subscriber;
use tokio_util::sync::CancellationToken;

use crate::config::InboxConfig;
use crate::handler::{Registration, describe};
use crate::preflight;

pub(crate) async fn may_forget<S: Subscriber>(
    subscriber: &S,
    handlers: &[Registration],
    config: &InboxConfig,
    stop: &CancellationToken,
) -> bool {
    match stop.run_until_cancelled(subscriber.facts()).await {
        Some(Ok(facts)) => {
            let (problem, _) = preflight::stream(&facts, handlers, config);
            if let Some(problem) = &problem {
                tracing::error!(error = %problem, "no inbox rows are deleted");
            }
            problem.is_none()
        }
        Some(Err(error)) => {
            tracing::warn!(error = %describe(&error), "stream could not be read, so no inbox rows are deleted");
            false
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outbox_core::{StreamFacts, SubscriberError};
    use outbox_testing::{MemoryBroker, MemorySubscriber};

    use super::*;
    use crate::tests::HANDLER;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    struct Away(MemorySubscriber);

    impl Subscriber for Away {
        type Subscription = <MemorySubscriber as Subscriber>::Subscription;

        async fn facts(&self) -> Result<StreamFacts, SubscriberError> {
            Err(SubscriberError::Interrupted {
                context: "not yet".to_owned(),
                source: None,
            })
        }

        outbox_testing::__forward!(double => double.0; subscribe, standing, belongs);
    }

    #[tokio::test]
    async fn purge_keeps_rows_of_redeliverable_messages() {
        let (handlers, config) = ([HANDLER], InboxConfig::default().retention(7 * DAY));
        let stop = CancellationToken::new();
        let broker = MemoryBroker::new();
        for (of_stream, expected) in [(Some(6 * DAY), true), (Some(30 * DAY), false), (None, true)] {
            let subscriber = broker.clone().with_retention(of_stream).subscriber();
            let may = may_forget(&subscriber, &handlers, &config, &stop).await;
            assert_eq!(may, expected, "{of_stream:?}");
        }
        let away = Away(broker.subscriber());
        assert!(!may_forget(&away, &handlers, &config, &stop).await);
    }
}
