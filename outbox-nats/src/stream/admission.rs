//! Predicts the stream's answer to a message without publishing.
//!
//! Invariant: at most two requests. A refusal is reported only if settings or contents of the
//! stream prove it; permissions and server disks can still cause rejections.

use std::collections::BTreeSet;
use std::fmt;

use async_nats::HeaderMap;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, InfoError, Stream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use outbox_core::{FailureClass, PublishError};

use crate::connect::connection::Live;
use crate::stream::preflight::message_bytes_max;
use crate::stream::subject::captures;

const STORED_BESIDE: u64 = 30;

const SUBJECTS_MAX: usize = 100_000;

/// The state of a stream, as far as it causes rejections.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamOutlook {
    /// The stream's name.
    pub name: String,
    /// The subjects that the stream captures; `None` if the stream does not exist.
    pub subjects: Option<Vec<String>>,
    /// Whether the stream is sealed.
    pub is_sealed: bool,
    /// Whether the stream acknowledges stored messages.
    pub confirms: bool,
    /// Bytes left before the stream rejects messages; `None` without a limit, or if a full stream
    /// drops its oldest messages.
    pub bytes: Option<Room>,
    /// Messages left before the stream rejects messages; `None` under the same conditions as
    /// `bytes`.
    pub messages: Option<Room>,
    /// Maximum number of messages per subject before the stream rejects messages
    /// (`max_msgs_per_subject` with `discard_new_per_subject`); `None` without this limit.
    pub messages_of_subject: Option<u64>,
    /// Full subjects: subjects that hold the maximum `messages_of_subject`, among the first 100,000
    /// that the server lists.
    pub full_subjects: BTreeSet<String>,
    /// The largest message that server and stream accept, with headers, in bytes.
    pub message_bytes: usize,
}

/// The remaining capacity of a stream limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// The bytes or messages left.
    pub left: u64,
    /// The limit, in bytes or messages.
    pub most: u64,
}

/// The reached limit of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    /// `max_msgs`, in messages.
    Messages(u64),
    /// `max_bytes`, in bytes.
    Bytes(u64),
    /// `max_msgs_per_subject`, in messages.
    MessagesOfSubject(u64),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Messages(most) => write!(f, "max_msgs is {most}"),
            Self::Bytes(most) => write!(f, "max_bytes is {most}"),
            Self::MessagesOfSubject(most) => write!(
                f,
                "max_msgs_per_subject is {most} and reached, and discard_new_per_subject is set"
            ),
        }
    }
}

/// Why a message would be rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The stream does not exist.
    NoStream {
        /// The stream's name.
        stream: String,
    },
    /// The stream does not capture the subject.
    NotCaptured {
        /// The stream's name.
        stream: String,
        /// The subject of the message.
        subject: String,
    },
    /// The stream is sealed.
    Sealed {
        /// The stream's name.
        stream: String,
    },
    /// The stream sends no acknowledgements.
    Unconfirmed {
        /// The stream's name.
        stream: String,
    },
    /// The stream is full and rejects new messages.
    Full {
        /// The stream's name.
        stream: String,
        /// The reached limit of the stream.
        limit: Limit,
    },
    /// The message is too large.
    TooLarge {
        /// The message size with headers, in bytes.
        bytes: usize,
        /// The maximum message size, in bytes.
        limit: usize,
    },
    /// A subject or header cannot be sent, because the stored row was changed.
    Unsendable {
        /// The invalid subject or header.
        what: String,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStream { stream } => write!(f, "stream `{stream}` does not exist"),
            Self::NotCaptured { stream, subject } => {
                write!(f, "stream `{stream}` does not capture subject `{subject}`")
            }
            Self::Sealed { stream } => write!(f, "stream `{stream}` is sealed and accepts no messages"),
            Self::Unconfirmed { stream } => {
                write!(f, "stream `{stream}` has no_ack and confirms no messages")
            }
            Self::Full {
                stream,
                limit: limit @ Limit::MessagesOfSubject(_),
            } => write!(f, "stream `{stream}` rejects messages on this subject: {limit}"),
            Self::Full { stream, limit } => {
                write!(f, "stream `{stream}` is full and rejects messages: {limit}")
            }
            Self::TooLarge { bytes, limit } => {
                write!(
                    f,
                    "the message has {bytes} bytes with headers; the limit is {limit}"
                )
            }
            Self::Unsendable { what } => f.write_str(what),
        }
    }
}

pub(crate) async fn read(live: &Live, name: &str) -> Result<StreamOutlook, PublishError> {
    let max_payload = live.client.server_info().max_payload;
    let unreadable = || PublishError::new(FailureClass::Unknown, format!("stream `{name}` cannot be read"));
    let stream = match live.context.get_stream(name).await {
        Ok(stream) => stream,
        Err(error) => {
            return match error.kind() {
                GetStreamErrorKind::JetStream(refused)
                    if refused.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(missing(name, max_payload))
                }
                _ => Err(unreadable().with_source(error)),
            };
        }
    };
    let mut outlook = outlook_of(stream.cached_info(), max_payload);
    if let Some(most) = outlook.messages_of_subject {
        outlook.full_subjects = full_subjects(&stream, most).await.unwrap_or_default();
    }
    Ok(outlook)
}

async fn full_subjects(stream: &Stream, most: u64) -> Result<BTreeSet<String>, InfoError> {
    let subjects = usize::try_from(stream.cached_info().state.subjects_count).unwrap_or(SUBJECTS_MAX);
    let mut counts = stream
        .info_with_subjects(">")
        .await?
        .take(subjects.min(SUBJECTS_MAX));
    let mut full = BTreeSet::new();
    while let Some((subject, count)) = counts.try_next().await? {
        if count as u64 >= most {
            full.insert(subject);
        }
    }
    Ok(full)
}

fn messages_of_subject(config: &Config) -> Option<u64> {
    let most = u64::try_from(config.max_messages_per_subject).ok();
    most.filter(|most| *most > 0 && config.discard_new_per_subject)
}

impl StreamOutlook {
    pub(crate) fn refuses(&self, subject: &str, bytes: usize) -> Option<Refusal> {
        let stream = self.name.clone();
        let Some(subjects) = &self.subjects else {
            return Some(Refusal::NoStream { stream });
        };
        if !captures(subjects, subject) {
            let subject = subject.to_owned();
            return Some(Refusal::NotCaptured { stream, subject });
        }
        if self.is_sealed {
            return Some(Refusal::Sealed { stream });
        }
        if !self.confirms {
            return Some(Refusal::Unconfirmed { stream });
        }
        if bytes > self.message_bytes {
            let limit = self.message_bytes;
            return Some(Refusal::TooLarge { bytes, limit });
        }
        let stored = bytes as u64 + subject.len() as u64 + STORED_BESIDE;
        let limit = self.reached(subject, stored)?;
        Some(Refusal::Full { stream, limit })
    }

    fn reached(&self, subject: &str, stored: u64) -> Option<Limit> {
        let messages = self.messages.filter(|room| room.left == 0);
        let bytes = self.bytes.filter(|room| room.left < stored);
        messages
            .map(|room| Limit::Messages(room.most))
            .or_else(|| bytes.map(|room| Limit::Bytes(room.most)))
            .or_else(|| {
                let most = self.messages_of_subject?;
                self.full_subjects
                    .contains(subject)
                    .then_some(Limit::MessagesOfSubject(most))
            })
    }
}

fn missing(name: &str, max_payload: usize) -> StreamOutlook {
    StreamOutlook {
        name: name.to_owned(),
        subjects: None,
        is_sealed: false,
        confirms: true,
        bytes: None,
        messages: None,
        messages_of_subject: None,
        full_subjects: BTreeSet::new(),
        message_bytes: max_payload,
    }
}

fn outlook_of(info: &Info, max_payload: usize) -> StreamOutlook {
    let config = &info.config;
    let room = |limit: i64, used: u64| {
        let limit = u64::try_from(limit).ok().filter(|limit| *limit > 0);
        let refuses = config.discard == DiscardPolicy::New;
        limit.filter(|_| refuses).map(|most| Room {
            left: most.saturating_sub(used),
            most,
        })
    };
    StreamOutlook {
        name: config.name.clone(),
        subjects: Some(config.subjects.clone()),
        is_sealed: config.sealed,
        confirms: !config.no_ack,
        bytes: room(config.max_bytes, info.state.bytes),
        messages: room(config.max_messages, info.state.messages),
        messages_of_subject: messages_of_subject(config),
        full_subjects: BTreeSet::new(),
        message_bytes: message_bytes_max(config, max_payload),
    }
}

pub(crate) fn size_of(headers: &HeaderMap) -> usize {
    let lines: usize = headers
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| (name, value)))
        .map(|(name, value)| name.to_string().len() + value.as_str().len() + 4)
        .sum();
    "NATS/1.0\r\n\r\n".len() + lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlook() -> StreamOutlook {
        StreamOutlook {
            subjects: Some(vec!["events.>".to_owned()]),
            ..missing("EVENTS", 1_000)
        }
    }

    #[test]
    fn refusal_follows_the_settings_of_the_stream() {
        let subject = "events.order.1.placed";
        let check = |change: fn(&mut StreamOutlook), subject: &str, bytes, expected: Option<&str>| {
            let mut outlook = outlook();
            change(&mut outlook);
            let refusal = outlook.refuses(subject, bytes).map(|refusal| refusal.to_string());
            assert_eq!(refusal.as_deref(), expected);
        };
        check(|_| {}, subject, 1_000, None);
        check(
            |_| {},
            subject,
            1_001,
            Some("the message has 1001 bytes with headers; the limit is 1000"),
        );
        check(
            |_| {},
            "orders.placed",
            1,
            Some("stream `EVENTS` does not capture subject `orders.placed`"),
        );
        check(
            |outlook| outlook.subjects = None,
            subject,
            1,
            Some("stream `EVENTS` does not exist"),
        );
        check(
            |outlook| outlook.is_sealed = true,
            subject,
            1,
            Some("stream `EVENTS` is sealed and accepts no messages"),
        );
        check(
            |outlook| outlook.confirms = false,
            subject,
            1,
            Some("stream `EVENTS` has no_ack and confirms no messages"),
        );
    }

    #[test]
    fn full_stream_refusal_names_the_reached_limit() {
        let (subject, room) = ("events.order.1.placed", |left| Some(Room { left, most: 7_000 }));
        let check = |messages, bytes, expected: Option<&str>| {
            let outlook = StreamOutlook {
                messages,
                bytes,
                ..outlook()
            };
            let refusal = outlook.refuses(subject, 1).map(|refusal| refusal.to_string());
            assert_eq!(refusal.as_deref(), expected);
        };
        let of_messages = Some("stream `EVENTS` is full and rejects messages: max_msgs is 7000");
        let of_bytes = Some("stream `EVENTS` is full and rejects messages: max_bytes is 7000");
        check(room(0), None, of_messages);
        check(room(0), room(51), of_messages);
        check(room(1), room(51), of_bytes);
        check(room(1), room(52), None);
    }

    #[test]
    fn only_the_full_subject_is_refused() {
        let outlook = StreamOutlook {
            messages_of_subject: Some(1),
            full_subjects: BTreeSet::from(["events.order.1.placed".to_owned()]),
            ..outlook()
        };
        let limit = Limit::MessagesOfSubject(1);
        let stream = "EVENTS".to_owned();
        let refusal = outlook.refuses("events.order.1.placed", 1);
        assert_eq!(refusal, Some(Refusal::Full { stream, limit }));
        assert_eq!(outlook.refuses("events.order.2.placed", 1), None);
    }

    #[test]
    fn subject_is_full_only_if_the_stream_discards_new() {
        let config = |max_messages_per_subject, discard_new_per_subject| Config {
            max_messages_per_subject,
            discard_new_per_subject,
            ..Config::default()
        };
        assert_eq!(messages_of_subject(&config(1, true)), Some(1));
        assert_eq!(messages_of_subject(&config(5, false)), None);
        assert_eq!(messages_of_subject(&config(-1, true)), None);
    }
}
