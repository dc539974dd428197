//! Publishers with one mistake each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use outbox_core::headers::Headers;
use outbox_core::message::Message;
use outbox_core::publisher::{Destination, FailureClass, PublishError, Publisher, Receipt};

use crate::MemoryPublisher;

/// The mistake of a [`WrongPublisher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublisherMistake {
    /// Answers `Ok` before the broker has stored anything, as fire-and-forget publishing does.
    ConfirmsWithoutStoring,
    /// Sends no deduplication id.
    IgnoresMessageId,
    /// Reports a copy as a new message.
    HidesDuplicates,
    /// Treats messages with equal content as copies.
    DeduplicatesByContent,
    /// Confirms every other message early, and sends it after the next one.
    StoresLate,
    /// Reports an outage as the message's own fault.
    PermanentOnOutage,
    /// Reports during an outage that nothing was sent, although nobody can know.
    TransientOnOutage,
    /// Reports a message that is too large as an outage.
    TransientOnOversize,
    /// Drops the application's headers.
    DropsHeaders,
    /// Sends payloads as text instead of bytes.
    RewritesPayload,
    /// Publishes every message on its default subject.
    IgnoresSubject,
    /// Cuts aggregate ids at the first dot, as a naive subject codec does.
    CutsAggregateId,
    /// Answers with a wrong stream sequence.
    ReportsWrongStreamSequence,
    /// Warns about a healthy broker.
    AlwaysComplains,
    /// Closes its connection for good when publishes are abandoned.
    StaysClosed,
}

/// A publisher with one mistake.
#[derive(Debug)]
pub struct WrongPublisher {
    inner: MemoryPublisher,
    mistake: PublisherMistake,
    /// Messages that were published or set aside, depending on the mistake.
    kept: Mutex<Vec<Message>>,
    is_closed: AtomicBool,
}

impl WrongPublisher {
    /// Wraps a publisher.
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

    /// The message as this publisher sends it, with the mistake applied.
    fn spoil(&self, message: &Message) -> Message {
        let mut sent = message.clone();
        match self.mistake {
            PublisherMistake::DropsHeaders => sent.headers = Headers::default(),
            PublisherMistake::RewritesPayload => {
                sent.payload = Bytes::from(String::from_utf8_lossy(&message.payload).into_owned());
            }
            PublisherMistake::IgnoresSubject => sent.subject = None,
            PublisherMistake::CutsAggregateId => {
                sent.aggregate.id = message
                    .aggregate
                    .id
                    .split('.')
                    .next()
                    .unwrap_or_default()
                    .to_owned();
            }
            _ => {}
        }
        sent
    }
}

impl Publisher for WrongPublisher {
    fn destination(&self) -> Option<Destination> {
        self.inner.destination()
    }

    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        match self.mistake {
            PublisherMistake::ConfirmsWithoutStoring => {
                return Ok(Receipt {
                    stream_sequence: 1,
                    duplicate: false,
                });
            }
            PublisherMistake::DeduplicatesByContent => {
                let mut kept = self.kept();
                let stream_sequence = kept
                    .iter()
                    .position(|k| k.id != message.id && k.payload == message.payload);
                if let Some(stream_sequence) = stream_sequence {
                    return Ok(Receipt {
                        stream_sequence: stream_sequence as u64 + 1,
                        duplicate: true,
                    });
                }
                kept.push(message.clone());
            }
            PublisherMistake::StoresLate => {
                let late = self.kept().pop();
                let Some(late) = late else {
                    self.kept().push(message.clone());
                    return Ok(Receipt {
                        stream_sequence: 1,
                        duplicate: false,
                    });
                };
                let receipt = self.inner.publish(message).await?;
                self.inner.publish(&late).await?;
                return Ok(receipt);
            }
            PublisherMistake::IgnoresMessageId => self.inner.broker().forget_ids(),
            _ => {}
        }
        if self.is_closed.load(Ordering::Relaxed) {
            let context = "the connection is closed";
            return Err(PublishError::new(FailureClass::Unknown, context));
        }
        let result = self.inner.publish(&self.spoil(message)).await;
        match self.mistake {
            PublisherMistake::HidesDuplicates => result.map(|receipt| Receipt {
                duplicate: false,
                ..receipt
            }),
            PublisherMistake::ReportsWrongStreamSequence => result.map(|receipt| Receipt {
                stream_sequence: receipt.stream_sequence + 1,
                ..receipt
            }),
            PublisherMistake::PermanentOnOutage => {
                result.map_err(|error| PublishError::new(FailureClass::Permanent, error.to_string()))
            }
            PublisherMistake::TransientOnOutage | PublisherMistake::TransientOnOversize => {
                result.map_err(|error| PublishError::new(FailureClass::Transient, error.to_string()))
            }
            _ => result,
        }
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        if self.mistake == PublisherMistake::AlwaysComplains {
            let context = "the stream is too large; delete it";
            return Err(PublishError::new(FailureClass::Configuration, context));
        }
        self.inner.preflight().await
    }

    async fn abandon(&self) {
        let is_wrong = self.mistake == PublisherMistake::StaysClosed;
        self.is_closed.store(is_wrong, Ordering::Relaxed);
        self.inner.abandon().await;
    }
}
