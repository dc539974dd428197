//! Builds subscriber errors from a text and a cause.

use async_nats::jetstream::stream::{ConsumerError, ConsumerErrorKind};
use outbox_core::SubscriberError;

use crate::publish::outcome::is_temporary;

pub(crate) fn interrupted(
    context: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> SubscriberError {
    SubscriberError::Interrupted {
        context: context.into(),
        source: Some(source.into()),
    }
}

pub(crate) fn configuration(
    context: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> SubscriberError {
    SubscriberError::Configuration {
        context: context.into(),
        source: Some(source.into()),
    }
}

pub(crate) fn misfit(context: impl Into<String>) -> SubscriberError {
    SubscriberError::Configuration {
        context: context.into(),
        source: None,
    }
}

pub(crate) fn not_changed(consumer: &str, error: ConsumerError) -> SubscriberError {
    match error.kind() {
        ConsumerErrorKind::JetStream(refused) if is_temporary(&refused) => {
            interrupted(format!("consumer `{consumer}` cannot be changed now"), error)
        }
        ConsumerErrorKind::JetStream(_)
        | ConsumerErrorKind::InvalidConsumerType
        | ConsumerErrorKind::InvalidName => configuration(
            format!("the server refused a change of consumer `{consumer}`"),
            error,
        ),
        _ => interrupted(format!("no answer to a change of consumer `{consumer}`"), error),
    }
}
