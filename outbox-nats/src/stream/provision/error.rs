//! Why a stream cannot be used, and the next step.

use std::error::Error;

use async_nats::jetstream;

use crate::publish::outcome::is_temporary;
use crate::stream::EventStream;

/// Why [`EventStream::provision`](crate::EventStream::provision) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProvisionError {
    /// The description of the stream, the stream or its server must be changed. A retry fails in
    /// the same way.
    #[error("{problem}")]
    Misfit {
        /// The problem and the next step.
        problem: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
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

    pub(crate) fn misfit(problem: String) -> Self {
        let source = None;
        Self::Misfit { problem, source }
    }

    pub(crate) fn contended(stream: &str) -> Self {
        Self::unavailable(stream, "other processes keep changing the stream")
    }

    pub(crate) fn setting(stream: &str, setting: &str, seen: &str, needed: &str) -> Self {
        Self::misfit(format!(
            "stream `{stream}` has `{setting}` = {seen}; it must be {needed}"
        ))
    }

    pub(crate) fn uncaptured(stream: &str, what: &str, subject: &str, seen: &[String]) -> Self {
        Self::misfit(format!(
            "stream `{stream}` ({}) does not capture {what}; add subject `{subject}` to the stream",
            seen.join(", ")
        ))
    }

    pub(crate) fn refused(stream: &str, source: jetstream::Error) -> Self {
        match is_temporary(&source) {
            true => Self::unavailable(stream, source),
            false => Self::unreadable(stream, source),
        }
    }

    pub(crate) fn unreadable(stream: &str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Misfit {
            problem: format!("stream `{stream}` cannot be read, created or changed"),
            source: Some(source.into()),
        }
    }

    pub(super) fn missing(wanted: &EventStream, subjects: &[String]) -> Self {
        Self::misfit(format!(
            "stream `{}` does not exist; create it with: {}",
            wanted.name,
            add_command(wanted, subjects)
        ))
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
