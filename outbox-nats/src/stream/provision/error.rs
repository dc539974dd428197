//! Why a stream cannot be used, and the next step.

use std::error::Error;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use outbox_core::CatalogueError;

use crate::publish::outcome::is_temporary;
use crate::stream::EventStream;

/// Why [`EventStream::provision`](crate::EventStream::provision) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProvisionError {
    /// Event types linked into this program contradict each other.
    #[error("the events of stream `{stream}` cannot be listed")]
    Catalogue {
        /// The stream's name.
        stream: String,
        /// The contradicting event types.
        source: CatalogueError,
    },
    /// The description of the stream contradicts itself.
    #[error("description of stream `{stream}` is invalid: {reason}")]
    Spec {
        /// The stream's name, escaped.
        stream: String,
        /// The contradiction in the description.
        reason: &'static str,
    },
    /// The stream does not exist, and [`Provisioning::VerifyOnly`](crate::Provisioning::VerifyOnly)
    /// is set.
    #[error("stream `{stream}` does not exist; create it with: {command}")]
    Missing {
        /// The stream's name.
        stream: String,
        /// The `nats` command that creates the stream.
        command: String,
    },
    /// A setting makes the stream unusable for an outbox.
    #[error("stream `{stream}` has `{setting}` = {seen}; it must be {needed}")]
    Setting {
        /// The stream's name.
        stream: String,
        /// The name of the setting.
        setting: &'static str,
        /// The current value of the setting.
        seen: String,
        /// The required value of the setting, and the reason.
        needed: &'static str,
    },
    /// The duplicate window is too short, and the description or the stream's `max_age` forbid
    /// raising it.
    #[error("stream `{stream}` has a duplicate window of {seen:?}, {needed:?} is needed; raise it with: nats stream edit {stream} --dupe-window={}s (and `max_age` if that is shorter)", needed.as_secs())]
    DuplicateWindow {
        /// The stream's name.
        stream: String,
        /// The stream's current duplicate window.
        seen: Duration,
        /// The required duplicate window, [`EventStream::with_duplicate_window`].
        needed: Duration,
    },
    /// No subject of the stream captures an event, or a subject of the description.
    #[error("stream `{stream}` ({}) does not capture {what}; add subject `{subject}` to the stream", seen.join(", "))]
    Uncaptured {
        /// The stream's name.
        stream: String,
        /// The event or the subject that the stream does not capture.
        what: String,
        /// The subject to add.
        subject: String,
        /// The subjects of the stream.
        seen: Vec<String>,
    },
    /// A subject belongs to another stream.
    #[error(
        "subject `{subject}` of stream `{stream}` overlaps with stream `{other}`; use that stream, or another subject prefix"
    )]
    SubjectTaken {
        /// The stream's name.
        stream: String,
        /// The overlapping subject.
        subject: String,
        /// The name of the other stream.
        other: String,
    },
    /// The server refused to read, create or change the stream, or the server's answer cannot be
    /// read. A retry fails in the same way.
    #[error("stream `{stream}` cannot be read, created or changed")]
    Refused {
        /// The stream's name.
        stream: String,
        /// The reason of the refusal.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The stream's state is unknown: the server is unreachable, its cluster has no leader or
    /// majority, JetStream is off, permissions deny the request, or other processes kept changing
    /// the stream.
    #[error(
        "no answer about stream `{stream}`; check that the server runs with JetStream, that most servers of its cluster run, and that permissions allow `$JS.API.STREAM.>`"
    )]
    Unavailable {
        /// The stream's name.
        stream: String,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ProvisionError {
    pub(crate) fn unavailable(stream: &str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable {
            stream: stream.to_owned(),
            source: source.into(),
        }
    }

    pub(crate) fn contended(stream: &str) -> Self {
        Self::unavailable(stream, "other processes keep changing the stream")
    }

    pub(crate) fn check_retention(stream: &str, seen: &Config) -> Result<(), Self> {
        match seen.retention {
            RetentionPolicy::Limits => Ok(()),
            retention => Err(Self::Setting {
                stream: stream.to_owned(),
                setting: "retention",
                seen: format!("{retention:?}"),
                needed: "Limits, because other policies delete published ids; it cannot be changed, so create another stream",
            }),
        }
    }

    pub(crate) fn refused(stream: &str, source: jetstream::Error) -> Self {
        if is_temporary(&source) {
            return Self::unavailable(stream, source);
        }
        Self::Refused {
            stream: stream.to_owned(),
            source: source.into(),
        }
    }

    pub(super) fn missing(wanted: &EventStream, subjects: &[String]) -> Self {
        Self::Missing {
            stream: wanted.name.clone(),
            command: add_command(wanted, subjects),
        }
    }
}

pub(super) fn add_command(wanted: &EventStream, subjects: &[String]) -> String {
    format!(
        "nats stream add {} --subjects='{}' --storage=file --retention=limits --discard=new --dupe-window={}s --max-age={}s --max-bytes={} --replicas={} --defaults",
        wanted.name,
        subjects.join(","),
        wanted.duplicate_window.as_secs(),
        wanted.max_age.as_secs(),
        wanted
            .max_bytes
            .map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string()),
        wanted.replicas,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_stream_error_has_the_create_command() {
        let error = ProvisionError::missing(
            &EventStream::default(),
            &["events.>".to_owned(), "legacy.x".to_owned()],
        );
        assert_eq!(
            error.to_string(),
            "stream `EVENTS` does not exist; create it with: nats stream add EVENTS --subjects='events.>,legacy.x' --storage=file --retention=limits --discard=new --dupe-window=600s --max-age=1209600s --max-bytes=-1 --replicas=1 --defaults"
        );
    }
}
