//! Publishers with one mistake each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use outbox_core::headers::Headers;
use outbox_core::message::Message;
use outbox_core::publisher::{Destination, FailureClass, PublishError, Publisher, Receipt};

use outbox_testing::MemoryPublisher;

use PublisherMistake as M;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublisherMistake {
    ConfirmsWithoutStoring,
    IgnoresMessageId,
    HidesDuplicates,
    /// The publisher treats messages with equal content as copies.
    DeduplicatesByContent,
    /// The publisher confirms every other message early, and sends it after the next message.
    StoresLate,
    /// The publisher reports an outage as a permanent error.
    PermanentOnOutage,
    /// The publisher reports that a message was not sent, although this is unknown.
    TransientOnOutage,
    TransientOnOversize,
    DropsHeaders,
    /// The publisher sends text instead of bytes.
    RewritesPayload,
    IgnoresSubject,
    CutsAggregateId,
    ReportsWrongStreamSequence,
    AlwaysComplains,
    /// `abandon` closes the connection permanently.
    StaysClosed,
}

#[derive(Debug)]
pub struct WrongPublisher {
    inner: MemoryPublisher,
    mistake: PublisherMistake,
    kept: Mutex<Vec<Message>>,
    is_closed: AtomicBool,
}

impl WrongPublisher {
    #[must_use]
    pub fn new(inner: MemoryPublisher, mistake: PublisherMistake) -> Self {
        Self {
            inner,
            mistake,
            kept: Mutex::default(),
            is_closed: AtomicBool::new(false),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Message>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spoil(&self, message: &Message) -> Message {
        let mut sent = message.clone();
        match self.mistake {
            M::DropsHeaders => sent.headers = Headers::default(),
            M::RewritesPayload => {
                sent.payload = Bytes::from(String::from_utf8_lossy(&message.payload).into_owned());
            }
            M::IgnoresSubject => sent.subject = None,
            M::CutsAggregateId => {
                let cut = message.aggregate.id.split('.').next();
                sent.aggregate.id = cut.unwrap_or_default().to_owned();
            }
            _ => {}
        }
        sent
    }
}

fn receipt(stream_sequence: u64, duplicate: bool) -> Receipt {
    Receipt {
        stream_sequence,
        duplicate,
    }
}

impl Publisher for WrongPublisher {
    fn destination(&self) -> Option<Destination> {
        self.inner.destination()
    }

    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        match self.mistake {
            M::ConfirmsWithoutStoring => return Ok(receipt(1, false)),
            M::DeduplicatesByContent => {
                let mut kept = self.kept();
                let is_equal = |kept: &Message| kept.id != message.id && kept.payload == message.payload;
                if let Some(before) = kept.iter().position(is_equal) {
                    return Ok(receipt(before as u64 + 1, true));
                }
                kept.push(message.clone());
            }
            M::StoresLate => {
                let late = self.kept().pop();
                let Some(late) = late else {
                    self.kept().push(message.clone());
                    return Ok(receipt(1, false));
                };
                let confirmed = self.inner.publish(message).await?;
                self.inner.publish(&late).await?;
                return Ok(confirmed);
            }
            M::IgnoresMessageId => self.inner.broker().forget_ids(),
            _ => {}
        }
        if self.is_closed.load(Ordering::Relaxed) {
            let context = "the connection is closed";
            return Err(PublishError::new(FailureClass::Unknown, context));
        }
        let result = self.inner.publish(&self.spoil(message)).await;
        match self.mistake {
            M::HidesDuplicates => result.map(|sent| receipt(sent.stream_sequence, false)),
            M::ReportsWrongStreamSequence => {
                result.map(|sent| receipt(sent.stream_sequence + 1, sent.duplicate))
            }
            M::PermanentOnOutage => {
                result.map_err(|error| PublishError::new(FailureClass::Permanent, error.to_string()))
            }
            M::TransientOnOutage | M::TransientOnOversize => {
                result.map_err(|error| PublishError::new(FailureClass::Transient, error.to_string()))
            }
            _ => result,
        }
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        if self.mistake == M::AlwaysComplains {
            let context = "the stream is too large; delete it";
            return Err(PublishError::new(FailureClass::Configuration, context));
        }
        self.inner.preflight().await
    }

    async fn abandon(&self) {
        let is_wrong = self.mistake == M::StaysClosed;
        self.is_closed.store(is_wrong, Ordering::Relaxed);
        self.inner.abandon().await;
    }
}
