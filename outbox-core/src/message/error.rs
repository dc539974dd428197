//! Why an event cannot be recorded.

use crate::headers::HeaderError;
use crate::payload::CodecError;

/// Why an event cannot be recorded. Nothing was written; the caller may roll back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The codec rejected the value.
    #[error("event `{event_type}` cannot be encoded")]
    Encode {
        /// The event type.
        event_type: String,
        /// The codec's error.
        source: CodecError,
    },
    /// A malformed aggregate type or event name. The derive rejects such names at compile time.
    #[error("{what} `{name}` is malformed; use `[a-z][a-z0-9_-]*`, at most 64 bytes")]
    Name {
        /// The name's kind.
        what: &'static str,
        /// The escaped name.
        name: String,
    },
    /// Event version 0.
    #[error("event `{event_type}` has version 0; versions start at 1")]
    Version {
        /// The event type.
        event_type: String,
    },
    /// Aggregate id or deduplication key is empty, too long, or contains NUL.
    #[error("{what} of event `{event_type}` {reason}; use 1 to 255 characters without NUL")]
    Key {
        /// The key's kind.
        what: &'static str,
        /// The event type.
        event_type: String,
        /// The key's problem.
        reason: &'static str,
    },
    /// Invalid subject. The derive rejects such subjects at compile time.
    #[error("subject `{subject}` {reason}; use dot-separated tokens without wildcards, at most 255 bytes")]
    Subject {
        /// The escaped subject.
        subject: String,
        /// The subject's problem.
        reason: &'static str,
    },
    /// Payload or headers are too large.
    #[error(
        "{what} of event `{event_type}` has {size_bytes} bytes, the limit is {limit_bytes}; store the data elsewhere and send a reference, or raise the limit together with the broker's `max_payload`"
    )]
    TooLarge {
        /// `payload` or `headers`.
        what: &'static str,
        /// The event type.
        event_type: String,
        /// Size in bytes.
        size_bytes: usize,
        /// Limit in bytes, from [`Limits`](crate::Limits).
        limit_bytes: usize,
    },
    /// A header was rejected.
    #[error(transparent)]
    Header(#[from] HeaderError),
}
