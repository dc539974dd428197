//! Read access to the log of the in-memory broker.

use std::collections::HashSet;

use outbox_core::message::MessageId;
use outbox_core::publisher::{StreamExtent, StreamedMessage};
use time::OffsetDateTime;

use super::State;

impl State {
    pub(in super::super) fn locate(&self, id: MessageId) -> Option<u64> {
        let entry = self.log().find(|entry| entry.message_id == Some(id))?;
        Some(entry.stream_sequence)
    }

    pub(in super::super) fn message_ids(&self, from: OffsetDateTime) -> HashSet<MessageId> {
        self.log()
            .filter(|entry| entry.stored_at >= from)
            .filter_map(|entry| entry.message_id)
            .collect()
    }

    pub(in super::super) fn read(
        &self,
        from: OffsetDateTime,
        see: &mut dyn FnMut(StreamedMessage) -> bool,
    ) -> StreamExtent {
        let first = self.log().next();
        let mut extent = StreamExtent {
            first_stream_sequence: first.map_or(self.last_stream_sequence, |entry| entry.stream_sequence),
            first_stored_at: first.map(|entry| entry.stored_at),
            last_stream_sequence: self.last_stream_sequence,
            foreign: 0,
        };
        for entry in self.log().filter(|entry| entry.stored_at >= from) {
            match StreamedMessage::decode(entry.stream_sequence, entry.stored_at, &entry.headers) {
                Some(message) => {
                    if !see(message) {
                        break;
                    }
                }
                None => extent.foreign += 1,
            }
        }
        extent
    }
}
