//! A message as the broker stores it.

use bytes::Bytes;
use outbox_core::message::MessageId;
use time::OffsetDateTime;

use super::LogEntry;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) stream_sequence: u64,
    pub(super) subject: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) payload: Bytes,
    pub(super) event_type: Option<String>,
    pub(super) message_id: Option<MessageId>,
    pub(super) stored_at: OffsetDateTime,
}

impl Entry {
    pub(super) fn decoded(&self) -> LogEntry {
        LogEntry::decode(
            self.stream_sequence,
            self.subject.clone(),
            &self.headers,
            self.payload.clone(),
        )
    }
}
