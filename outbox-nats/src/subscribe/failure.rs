//! Makes the errors of subscribers out of a text and a cause.

use outbox_core::SubscriberError;

/// A failure that may pass by itself, such as a server that is away.
pub(crate) fn interrupted(
    context: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> SubscriberError {
    SubscriberError::Interrupted {
        context: context.into(),
        source: Some(source.into()),
    }
}

/// A failure that lasts until somebody changes a setting.
pub(crate) fn configuration(
    context: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> SubscriberError {
    SubscriberError::Configuration {
        context: context.into(),
        source: Some(source.into()),
    }
}
