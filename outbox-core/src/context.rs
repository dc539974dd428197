//! The origin of a message (correlation, causation, trace), carried by the running task.
//!
//! Invariant: the context is captured when an event is recorded, so it reflects the request or the
//! handled message, never the relay.

use std::future::Future;

use crate::headers::{self, HeaderError, Headers};

tokio::task_local! {
    static CURRENT: MessageContext;
}

/// Optional ids of a message's cause.
///
/// ```
/// # use outbox_core::MessageContext;
/// # async fn handle_request() {}
/// # async fn demo() {
/// let context = MessageContext {
///     correlation_id: Some("request-17".into()),
///     ..MessageContext::default()
/// };
/// // Everything recorded in here carries the correlation id, also across `.await`.
/// context.scope(handle_request()).await;
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageContext {
    /// Id shared by all messages of a business process; consumers pass it on.
    pub correlation_id: Option<String>,
    /// Causing message or request.
    pub causation_id: Option<String>,
    /// W3C `traceparent`.
    pub traceparent: Option<String>,
    /// W3C `tracestate`.
    pub tracestate: Option<String>,
}

impl MessageContext {
    /// Runs a future in this context, which replaces an outer context. Spawned tasks do not inherit
    /// the context.
    pub fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, future)
    }

    /// Runs a closure as [`Self::scope`] runs a future.
    pub fn sync_scope<R>(self, f: impl FnOnce() -> R) -> R {
        CURRENT.sync_scope(self, f)
    }

    /// The running task's context, or an empty context.
    #[must_use]
    pub fn current() -> Self {
        CURRENT.try_with(Clone::clone).unwrap_or_default()
    }

    pub(crate) fn write_to(&self, headers: &mut Headers) -> Result<(), HeaderError> {
        for (name, value) in [
            (headers::CORRELATION_ID, &self.correlation_id),
            (headers::CAUSATION_ID, &self.causation_id),
            (headers::TRACEPARENT, &self.traceparent),
            (headers::TRACESTATE, &self.tracestate),
        ] {
            if let Some(value) = value {
                headers.set_own(name, value.clone())?;
            }
        }
        Ok(())
    }

    /// Reads the context from a message's headers.
    #[must_use]
    pub fn from_headers(headers: &Headers) -> Self {
        let get = |name| headers.get(name).map(str::to_owned);
        Self {
            correlation_id: get(headers::CORRELATION_ID),
            causation_id: get(headers::CAUSATION_ID),
            traceparent: get(headers::TRACEPARENT),
            tracestate: get(headers::TRACESTATE),
        }
    }
}
