//! Makes the errors of subscribers out of a text and a cause.

use outbox_core::SubscriberError;

/// Trouble that may pass by itself: the server is away, or has no leader.
pub(crate) fn interrupted(
    context: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> SubscriberError {
    SubscriberError::Interrupted {
        context: context.into(),
        source: Some(source.into()),
    }
}

/// Something that somebody has to change.
pub(crate) fn configuration(
    context: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> SubscriberError {
    SubscriberError::Configuration {
        context: context.into(),
        source: Some(source.into()),
    }
}
