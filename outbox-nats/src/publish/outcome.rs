//! Classifies JetStream's answer to a publish for the relay.
//!
//! Invariants: a message counts as stored only with an acknowledgement that has a stream sequence
//! on the expected stream. A failure is permanent only if the server would reject every retry;
//! after any other failure, the message is sent again with the same id. Error kinds and codes
//! decide, never texts, which change between server versions.
//!
//! | answer | class |
//! |---|---|
//! | stream sequence > 0 on the expected stream | stored |
//! | stream sequence 0 | unknown: servers before 2.10.26 sent it for messages not stored |
//! | another stream's name | configuration |
//! | not connected, window full, no answer in time, connection closed | unknown |
//! | the server denies publishing on the subject, or receiving replies | configuration |
//! | no stream listens on the subject | transient: also during elections |
//! | 10158 id is being stored at the moment | transient |
//! | 10077, 10023, 10047, 10167, other answers with status 503 | backpressure |
//! | 10071, 10164 wrong last sequence | unknown: fenced off, or stored by an earlier attempt |
//! | 10060 wrong stream, 10109 sealed, 10076 and 10039 JetStream off | configuration |
//! | larger than `max_payload`, 10054, 10097, malformed subject | permanent |
//! | a fixed subject that the stream does not capture: not sent | uncaptured |
//! | anything else | unclassified |

use std::error::Error;
use std::time::Duration;

use async_nats::jetstream::context::{PublishError as SendError, PublishErrorKind};
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::{self, ErrorCode};
use outbox_core::{FailureClass, MessageId, PublishError, Receipt};

pub(crate) fn is_wrong_last_sequence(error: &PublishError) -> bool {
    let Some(error) = error
        .source()
        .and_then(|source| source.downcast_ref::<SendError>())
    else {
        return false;
    };
    error.kind() == PublishErrorKind::WrongLastSequence
        || matches!(
            Cause::of(error),
            Cause::Refused {
                code: ErrorCode::STREAM_WRONG_LAST_SEQUENCE | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT,
                ..
            }
        )
}

/// Whether a rejection comes from a leader election or a lost majority. Other rejections mean a
/// wrong request.
pub(crate) fn is_temporary(refused: &jetstream::Error) -> bool {
    match refused.error_code() {
        ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => false,
        ErrorCode::STREAM_OFFLINE | ErrorCode::CONSUMER_OFFLINE => true,
        _ => refused.code() == 503,
    }
}

pub(crate) fn not_captured(stream: &str, subject: &str, id: MessageId) -> String {
    let subject = subject.escape_debug();
    format!(
        "no stream captures subject `{subject}` of message {id}; add the subject to stream `{stream}`, unless its cluster is electing a leader"
    )
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PublishAttempt<'a> {
    pub(crate) id: MessageId,
    pub(crate) stream: &'a str,
    pub(crate) subject: &'a str,
}

impl PublishAttempt<'_> {
    pub(crate) fn receipt(&self, ack: &PublishAck) -> Result<Receipt, PublishError> {
        let Self { id, stream, .. } = self;
        if ack.stream != *stream {
            let context = format!(
                "message {id} was stored on stream `{}` instead of `{stream}`; correct the publisher's stream or the streams' subjects",
                ack.stream
            );
            return Err(PublishError::new(FailureClass::Configuration, context));
        }
        if ack.sequence == 0 {
            let context = format!(
                "acknowledgement of message {id} has no stream sequence, so the message may not be stored"
            );
            return Err(PublishError::new(FailureClass::Unknown, context));
        }
        Ok(Receipt {
            stream_sequence: ack.sequence,
            duplicate: ack.duplicate,
        })
    }

    pub(crate) fn not_connected(&self) -> PublishError {
        let context = format!("not connected, message {} was not sent", self.id);
        PublishError::new(FailureClass::Unknown, context)
    }

    pub(crate) fn no_room(&self, waited: Duration) -> PublishError {
        let context = format!(
            "window or send buffer stayed full for {waited:?}, message {} was not sent",
            self.id
        );
        PublishError::new(FailureClass::Unknown, context)
    }

    pub(crate) fn unconfirmed(&self, waited: Duration) -> PublishError {
        let Self { id, stream, .. } = self;
        let context = format!("message {id} was not confirmed by stream `{stream}` within {waited:?}");
        PublishError::new(FailureClass::Unknown, context)
    }

    pub(crate) fn denied(&self) -> PublishError {
        let Self { id, subject, .. } = self;
        let context = format!(
            "nats denies publishing message {id} on subject `{subject}`; grant this user the permission to publish on it"
        );
        PublishError::new(FailureClass::Configuration, context)
    }

    pub(crate) fn denied_answer(&self, inbox: &str) -> PublishError {
        let context = format!(
            "message {} cannot be confirmed: nats denies subscribing to `{inbox}`; grant this user the permission to subscribe to it",
            self.id
        );
        PublishError::new(FailureClass::Configuration, context)
    }

    pub(crate) fn failure(&self, error: SendError) -> PublishError {
        let Self { id, stream, subject } = self;
        let cause = Cause::of(&error);
        let class = classify(error.kind(), cause);
        // Texts of permanent and configuration errors name the next step.
        let context = match (class, error.kind(), cause) {
            (_, PublishErrorKind::StreamNotFound, _) => not_captured(stream, subject, *id),
            (
                _,
                _,
                Cause::Refused {
                    code: ErrorCode::STREAM_NOT_MATCH,
                    ..
                },
            ) => format!(
                "subject `{subject}` of message {id} belongs to another stream than `{stream}`; correct the publisher's stream or prefix"
            ),
            (FailureClass::Permanent, PublishErrorKind::MaxPayloadExceeded, _)
            | (
                _,
                _,
                Cause::Refused {
                    code: ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM,
                    ..
                },
            ) => format!(
                "message {id} is larger than the server or stream `{stream}` accepts; raise `max_payload` or `max_msg_size`, or send a reference"
            ),
            (FailureClass::Unknown, ..) => format!("message {id} was not confirmed by stream `{stream}`"),
            (FailureClass::Backpressure, ..) => {
                format!("stream `{stream}` is full or throttles, message {id} waits")
            }
            _ => format!("stream `{stream}` refused message {id} on subject `{subject}`"),
        };
        PublishError::new(class, context).with_source(error)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Refused {
        code: ErrorCode,
        status: usize,
    },
    Subject,
    Unreadable,
    /// The connection was closed by this publisher or by the client's owner.
    Closed,
    Other,
}

impl Cause {
    fn of(error: &SendError) -> Self {
        let Some(source) = error.source() else {
            return Self::Other;
        };
        if let Some(refused) = source.downcast_ref::<jetstream::Error>() {
            Self::Refused {
                code: refused.error_code(),
                status: refused.code(),
            }
        } else if source.is::<async_nats::SubjectError>() {
            Self::Subject
        } else if source.is::<serde_json::Error>() {
            Self::Unreadable
        } else {
            Self::Closed
        }
    }
}

fn classify(kind: PublishErrorKind, cause: Cause) -> FailureClass {
    match (kind, cause) {
        (PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe, _)
        | (PublishErrorKind::Other, Cause::Closed)
        | (_, Cause::Unreadable) => FailureClass::Unknown,
        (PublishErrorKind::StreamNotFound | PublishErrorKind::MaxAckPending, _) => FailureClass::Transient,
        (PublishErrorKind::MaxPayloadExceeded, _) | (_, Cause::Subject) => FailureClass::Permanent,
        (PublishErrorKind::WrongLastSequence, _) => FailureClass::Unknown,
        (_, Cause::Refused { code, status }) => match code {
            ErrorCode::STREAM_WRONG_LAST_SEQUENCE | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => {
                FailureClass::Unknown
            }
            ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT => FailureClass::Transient,
            ErrorCode::STREAM_NOT_MATCH
            | ErrorCode::STREAM_SEALED
            | ErrorCode::JETSTREAM_NOT_ENABLED
            | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => FailureClass::Configuration,
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
                FailureClass::Permanent
            }
            ErrorCode::STREAM_STORE_FAILED
            | ErrorCode::INSUFFICIENT_RESOURCES
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED
            | ErrorCode::STREAM_TOO_MANY_REQUESTS => FailureClass::Backpressure,
            // 10002 and 10028: storage and memory limits of the account.
            code if matches!(code.0, 10_002 | 10_028) => FailureClass::Backpressure,
            _ if status == 503 => FailureClass::Backpressure,
            // The server failed, not the message.
            _ if status >= 500 => FailureClass::Transient,
            _ => FailureClass::Unclassified,
        },
        // A later async-nats may return new error kinds. Such an error must not dead-letter a
        // message.
        _ => FailureClass::Unclassified,
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::FailureClass::{
        Backpressure, Configuration, Permanent, Transient, Unclassified, Unknown,
    };

    use super::*;

    fn attempt() -> PublishAttempt<'static> {
        PublishAttempt {
            id: MessageId::fresh(),
            stream: "EVENTS",
            subject: "events.order.1.placed",
        }
    }

    fn ack(stream: &str, sequence: u64, duplicate: bool) -> PublishAck {
        PublishAck {
            stream: stream.to_owned(),
            sequence,
            duplicate,
            ..PublishAck::default()
        }
    }

    fn refusal(status: u64, code: u64) -> SendError {
        let body = format!(r#"{{"code":{status},"err_code":{code},"description":"test"}}"#);
        let error: jetstream::Error = serde_json::from_str(&body).unwrap();
        SendError::with_source(PublishErrorKind::Other, error)
    }

    #[test]
    fn acknowledgement_needs_stream_and_stream_sequence() {
        let receipt = |stream_sequence, duplicate| Receipt {
            stream_sequence,
            duplicate,
        };
        assert_eq!(
            attempt().receipt(&ack("EVENTS", 7, false)).unwrap(),
            receipt(7, false)
        );
        assert_eq!(
            attempt().receipt(&ack("EVENTS", 7, true)).unwrap(),
            receipt(7, true)
        );
        for duplicate in [false, true] {
            assert_eq!(
                attempt()
                    .receipt(&ack("EVENTS", 0, duplicate))
                    .unwrap_err()
                    .class(),
                Unknown
            );
        }
        assert_eq!(
            attempt().receipt(&ack("OTHER", 7, false)).unwrap_err().class(),
            Configuration
        );
    }

    #[test]
    fn refusals_are_classified_by_code() {
        for (status, code, class) in [
            (400, 10071, Unknown),
            (400, 10164, Unknown),
            (409, 10158, Transient),
            (503, 10077, Backpressure),
            (503, 10023, Backpressure),
            (500, 10047, Backpressure),
            (429, 10167, Backpressure),
            (503, 10008, Backpressure),
            (503, 0, Backpressure),
            (400, 10060, Configuration),
            (400, 10109, Configuration),
            (503, 10076, Configuration),
            (503, 10039, Configuration),
            (400, 10054, Permanent),
            (400, 10097, Permanent),
            (400, 10070, Unclassified),
            (500, 19999, Transient),
            (400, 10002, Backpressure),
            (400, 10028, Backpressure),
            (400, 0, Unclassified),
        ] {
            assert_eq!(
                attempt().failure(refusal(status, code)).class(),
                class,
                "status {status}, code {code}"
            );
        }
    }

    #[test]
    fn temporary_rejections_are_recognised() {
        for (status, code, expected) in [
            (503, 10008, true),
            (500, 10118, true),
            (500, 10119, true),
            (503, 10076, false),
            (503, 10039, false),
            (500, 10074, false),
            (500, 10052, false),
            (404, 10059, false),
        ] {
            let refusal = refusal(status, code);
            let refused = refusal.source().unwrap().downcast_ref().unwrap();
            assert_eq!(is_temporary(refused), expected, "status {status}, code {code}");
        }
    }

    #[test]
    fn failures_without_an_answer_are_classified_by_kind() {
        for (kind, class) in [
            (PublishErrorKind::TimedOut, Unknown),
            (PublishErrorKind::BrokenPipe, Unknown),
            (PublishErrorKind::WrongLastSequence, Unknown),
            (PublishErrorKind::StreamNotFound, Transient),
            (PublishErrorKind::MaxAckPending, Transient),
            (PublishErrorKind::MaxPayloadExceeded, Permanent),
            (PublishErrorKind::WrongLastMessageId, Unclassified),
            (PublishErrorKind::Other, Unclassified),
        ] {
            assert_eq!(attempt().failure(SendError::new(kind)).class(), class, "{kind:?}");
        }
    }

    #[test]
    fn bad_answer_is_unknown_and_bad_subject_is_permanent() {
        let unreadable = serde_json::from_str::<u8>("no acknowledgement").unwrap_err();
        let unreadable = SendError::with_source(PublishErrorKind::Other, unreadable);
        assert_eq!(attempt().failure(unreadable).class(), Unknown);
        let subject =
            SendError::with_source(PublishErrorKind::Other, async_nats::SubjectError::InvalidFormat);
        assert_eq!(attempt().failure(subject).class(), Permanent);
    }

    #[test]
    fn a_wrong_last_sequence_is_recognised() {
        for (status, code, expected) in [(400, 10071, true), (400, 10164, true), (400, 10060, false)] {
            let error = attempt().failure(refusal(status, code));
            assert_eq!(is_wrong_last_sequence(&error), expected, "{code}");
        }
        let error = attempt().failure(SendError::new(PublishErrorKind::WrongLastSequence));
        assert!(is_wrong_last_sequence(&error));
    }

    #[test]
    fn the_cause_is_kept() {
        let error = attempt().failure(refusal(503, 10077));
        assert!(error.source().is_some_and(|source| source.is::<SendError>()));
    }
}
