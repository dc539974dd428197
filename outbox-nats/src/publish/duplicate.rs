//! Checks that a duplicate acknowledgement belongs to the message that was sent.
//!
//! JetStream drops a message with a known id, whatever its contents. Two outboxes on one stream may
//! use the same id for different events; the second event is acknowledged but not stored.

use outbox_core::{FailureClass, Message, PublishError, Receipt, StreamedMessage};
use time::OffsetDateTime;
use tokio::time::{Instant, timeout_at};

use crate::publish::JetStreamPublisher;
use crate::publish::outcome::PublishAttempt;
use crate::stream::{headers, message as stored_message};

/// Fails if the stored message is a different event. If the stream has deleted the stored message,
/// the check passes. The source is not compared, because an operator may change the source.
pub(crate) async fn check(
    publisher: &JetStreamPublisher,
    message: &Message,
    attempt: PublishAttempt<'_>,
    receipt: Receipt,
    deadline: Instant,
) -> Result<Receipt, PublishError> {
    let (stream, sequence) = (attempt.stream, receipt.stream_sequence);
    let reading = publisher.connected(async |live| {
        let stored = stored_message::at(&live.context, stream, sequence).await;
        stored.map_err(|error| not_checked(publisher, attempt, error.into()))
    });
    let stored = match timeout_at(deadline, reading).await {
        Ok(stored) => stored?,
        Err(elapsed) => return Err(not_checked(publisher, attempt, elapsed.into())),
    };
    let Some(stored) = stored else {
        return Ok(receipt);
    };
    let headers = headers::decode(&stored.headers);
    let other = StreamedMessage::decode(receipt.stream_sequence, OffsetDateTime::UNIX_EPOCH, &headers);
    if other.as_ref().is_some_and(|other| is_same(message, other)) {
        return Ok(receipt);
    }
    let what = match other {
        Some(other) => format!(
            "`{}` of {} from source `{}`",
            other.event_type, other.aggregate, other.source
        ),
        None => "no message of an outbox".to_owned(),
    };
    let context = format!(
        "stream `{}` did not store message {}: stream sequence {} has the same id and is {what}; record the event again with another id",
        attempt.stream, message.id, receipt.stream_sequence
    );
    Err(PublishError::new(FailureClass::Permanent, context))
}

fn not_checked(
    publisher: &JetStreamPublisher,
    attempt: PublishAttempt<'_>,
    error: Box<dyn std::error::Error + Send + Sync>,
) -> PublishError {
    let api = format!("$JS.API.STREAM.MSG.GET.{}", attempt.stream);
    let (class, why) = match publisher.is_denied(&api) {
        true => (
            FailureClass::Configuration,
            format!("cannot be read; grant this user the permission to publish on `{api}`"),
        ),
        false => (FailureClass::Unknown, "has not been read".to_owned()),
    };
    let context = format!(
        "the server has stored the id of message {} before, and the stored message {why}",
        attempt.id
    );
    PublishError::new(class, context).with_source(error)
}

fn is_same(message: &Message, stored: &StreamedMessage) -> bool {
    let apart = message.created_at - stored.recorded_at;
    stored.id == message.id
        && stored.event_id == message.event_id
        && stored.aggregate == message.aggregate
        && stored.sequence == message.sequence
        && stored.event_type == message.event_type
        // Times in headers have microsecond precision.
        && apart.abs() <= time::Duration::MICROSECOND
}
