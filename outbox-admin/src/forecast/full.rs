//! When a stream is full, and what one that drops its oldest messages takes from a consumer.

use std::time::Duration;

use super::{ConsumerSeen, Outlook, Prospect, StreamUse, Subject, rate, time_for};
use crate::words::{in_words, quoted};

/// Most bytes that a stream has left which stands still because it is full: as many as a server takes in one message by default.
const ROOM: u64 = 1 << 20;

/// Whether so many messages are all that the stream takes.
pub(crate) fn is_full_of_messages(used: u64, most: u64) -> bool {
    used >= most
}

/// The same of bytes. Some are left: the next message is too large for them, if it is as large as those before.
pub(crate) fn is_full_of_bytes(used: u64, most: u64, messages: u64) -> bool {
    let room = most.saturating_sub(used);
    used.checked_div(messages).is_some_and(|size| room < size)
}

/// Whether a stream to which nothing is added may be full of bytes: one message may have been larger than those before.
pub(super) fn may_be_full_of_bytes(used: u64, most: u64, messages: u64) -> bool {
    let is_near = most.saturating_sub(used) <= ROOM && used.saturating_mul(100) / most.max(1) >= 99;
    is_near || is_full_of_bytes(used, most, messages)
}

impl StreamUse {
    fn is_full(&self) -> bool {
        let of_messages = self.max_messages;
        let of_bytes = self.max_bytes;
        of_messages.is_some_and(|most| is_full_of_messages(self.messages, most))
            || of_bytes.is_some_and(|most| is_full_of_bytes(self.bytes, most, self.messages))
    }

    /// Messages that have left it.
    fn gone(&self) -> u64 {
        self.last_sequence.saturating_sub(self.messages)
    }
}

/// What a full stream drops next although this consumer has not read it, unless it has caught up before.
pub(super) fn of_drops(
    (earlier, now): (&StreamUse, &StreamUse),
    consumer: &ConsumerSeen,
    caught_up: Option<Duration>,
    between: Duration,
) -> Option<Prospect> {
    let oldest = consumer.oldest?;
    if !now.drops_oldest || !now.is_full() {
        return None;
    }
    // A message is dropped after as much time as it takes to drop all that are there now.
    let kept = time_for(now.messages, rate(earlier.gone(), now.gone(), between))?;
    let within = kept.saturating_sub(oldest);
    if caught_up.is_some_and(|caught_up| caught_up < within) {
        return None;
    }
    let what = format!(
        "the stream is full and drops its oldest messages: that of this consumer in {}, read or not",
        in_words(within)
    );
    let next = format!("outbox consumers lag {}", quoted(&consumer.consumer));
    Some(Prospect::new(
        (Subject::Expiry, &consumer.consumer),
        Outlook::Runs,
        0.0,
        Some(within),
        what,
        &next,
    ))
}
