//! Publishes in strong mode: the server rejects messages that would be out of order.
//!
//! Each message carries the stream sequence of the previous message on its aggregate's subject. So
//! the server rejects a late message of an old relay once another relay has published.
//!
//! Invariants: a rejected message counts as stored only if the message is found on the subject. A
//! rejected message is sent again only with a stream sequence that was read after the rejection.
//!
//! Without a cached stream sequence, and after a rejection, the last message of the subject
//! decides:
//!
//! | last message of the subject | then |
//! |---|---|
//! | none: a new aggregate, or all expired or purged | send, expecting stream sequence 0 |
//! | the same id | stored: the receipt reports a duplicate |
//! | a lower sequence | send, expecting its stream sequence |
//! | the same or a higher sequence, or a replayed copy | search: stored if found, else send |
//!
//! The search (module `search`) distinguishes a late copy from a dead letter that later messages
//! have overtaken. An overtaken message is published at the end of the subject. Replayed copies
//! (message id other than event id) have an old sequence, so each rejection of a copy needs a
//! search.

use async_nats::Subject;
use async_nats::header::{HeaderName, NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_ID};
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use outbox_core::{FailureClass, Message, PublishError, Receipt};
use time::OffsetDateTime;
use tokio::time::{Instant, timeout_at};

use crate::publish::JetStreamPublisher;
use crate::publish::outcome::{PublishAttempt, is_wrong_last_sequence};
use crate::publish::search;
use crate::stream::EventStream;
use crate::stream::listing::{Log, Start};
use crate::stream::message;

const TRIES_MAX: u32 = 3;

enum Standing {
    Stored(Receipt),
    After(u64),
}

pub(crate) async fn send(
    publisher: &JetStreamPublisher,
    message: &Message,
    attempt: PublishAttempt<'_>,
    subject: Subject,
    deadline: Instant,
    encode: impl Fn() -> Result<PublishMessage, PublishError>,
) -> Result<Receipt, PublishError> {
    let first = message.sequence == Some(1) && !is_replay(message);
    let mut expected = publisher.stream_sequences().get(&subject).or(first.then_some(0));
    let mut refused = None;
    for _ in 0..TRIES_MAX {
        let stream_sequence = match expected {
            Some(stream_sequence) => stream_sequence,
            None => match standing(publisher, message, attempt, refused.is_some(), deadline).await? {
                Standing::Stored(receipt) => return Ok(receipt),
                Standing::After(stream_sequence) => stream_sequence,
            },
        };
        let publish = encode()?.header(
            NATS_EXPECTED_LAST_SUBJECT_SEQUENCE,
            stream_sequence.to_string().as_str(),
        );
        match publisher.send(attempt, subject.clone(), publish, deadline).await {
            Ok(receipt) if receipt.duplicate => {
                publisher.searches().forget(message.id);
                // A duplicate's receipt may name an older stream sequence than the subject's last.
                publisher.stream_sequences().forget(&subject);
                return Ok(receipt);
            }
            Ok(receipt) => {
                publisher.searches().forget(message.id);
                publisher
                    .stream_sequences()
                    .set(&subject, receipt.stream_sequence);
                return Ok(receipt);
            }
            Err(error) if is_wrong_last_sequence(&error) => {
                publisher.stream_sequences().forget(&subject);
                expected = None;
                refused = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    let context = format!(
        "message {} was rejected {TRIES_MAX} times: another process publishes on `{subject}` at the same time",
        message.id
    );
    let error = PublishError::new(FailureClass::Unknown, context);
    Err(match refused {
        Some(refused) => error.with_source(refused),
        None => error,
    })
}

async fn standing(
    publisher: &JetStreamPublisher,
    message: &Message,
    attempt: PublishAttempt<'_>,
    refused: bool,
    deadline: Instant,
) -> Result<Standing, PublishError> {
    let look = async {
        let Some(last) = read_last(publisher, attempt.stream, attempt.subject).await? else {
            return Ok(Standing::After(0));
        };
        let stored = |stream_sequence| {
            Standing::Stored(Receipt {
                stream_sequence,
                duplicate: true,
            })
        };
        let stream_sequence = last.sequence;
        let header = |name: &'static str| last.headers.get(HeaderName::from_static(name));
        if last
            .headers
            .get(NATS_MESSAGE_ID)
            .is_some_and(|id| id.as_str() == message.id.to_string())
        {
            publisher.stream_sequences().set(attempt.subject, stream_sequence);
            return Ok(stored(stream_sequence));
        }
        let last_sequence = header("ce-sequence").and_then(|value| value.as_str().parse::<u64>().ok());
        let search = if is_replay(message) {
            refused
        } else {
            header("ce-messageid").is_some() || last_sequence >= message.sequence || last_sequence.is_none()
        };
        if search && let Some(stream_sequence) = search::find(publisher, message, attempt, deadline).await? {
            return Ok(stored(stream_sequence));
        }
        Ok(Standing::After(stream_sequence))
    };
    timeout_at(deadline, look)
        .await
        .map_err(|_| attempt.unconfirmed(publisher.config().ack_timeout))?
}

/// Checks before the first message that the user may read and search a subject. Creates and deletes
/// a consumer.
pub(crate) async fn check(publisher: &JetStreamPublisher) -> Result<(), PublishError> {
    let EventStream {
        name: stream, prefix, ..
    } = publisher.stream();
    // No message has this subject. Any reply proves that the publisher may read the last message of
    // a subject.
    let subject = format!("{prefix}.outbox-preflight");
    read_last(publisher, stream, &subject).await?;
    let now = OffsetDateTime::now_utc();
    let searched = publisher
        .connected(async |live| {
            let log = Log::open(live, stream).await?;
            log.read(Some(&subject), Start::At(now), |_, _, _| false).await
        })
        .await;
    searched.map(drop).map_err(|error| {
        match publisher.denied_under(&format!("$JS.API.CONSUMER.CREATE.{stream}")) {
            Some(api) => PublishError::new(
                FailureClass::Configuration,
                format!("subjects cannot be searched; fenced publishing needs the permission to publish on `{api}`"),
            )
            .with_source(error),
            None => error,
        }
    })
}

async fn read_last(
    publisher: &JetStreamPublisher,
    stream: &str,
    subject: &str,
) -> Result<Option<StreamMessage>, PublishError> {
    let api = format!("$JS.API.STREAM.MSG.GET.{stream}");
    let denied = || publisher.is_denied(&api);
    let failed = |error| {
        let class = if denied() {
            FailureClass::Configuration
        } else {
            FailureClass::Unknown
        };
        let context = format!(
            "last message of `{subject}` cannot be read; fenced publishing needs the permission to publish on `{api}`"
        );
        PublishError::new(class, context).with_source(error)
    };
    publisher
        .connected(async |live| {
            message::last(&live.context, stream, subject)
                .await
                .map_err(failed)
        })
        .await
}

fn is_replay(message: &Message) -> bool {
    message.id.as_uuid() != message.event_id.as_uuid()
}
