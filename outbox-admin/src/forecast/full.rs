//! Predicts which unread messages a full stream drops.

use std::time::Duration;

use super::{ConsumerSeen, Outlook, Prospect, StreamUse, Subject, rate, time_for};
use crate::next::Command;
use crate::words::in_words;

fn is_full_of_messages(used: u64, most: u64) -> bool {
    used >= most
}

/// Full if a message of average size does not fit.
pub(super) fn is_full_of_bytes(used: u64, most: u64, messages: u64) -> bool {
    let room = most.saturating_sub(used);
    used.checked_div(messages).is_some_and(|size| room < size)
}

/// The `nats stream edit` flag for a doubled limit: `doubled("max-msgs", 5)` is `--max-msgs=10`.
#[must_use]
pub fn doubled(option: &str, most: u64) -> String {
    format!("--{option}={}", most.saturating_mul(2))
}

/// The reached limit and the flag that doubles it, from (used, limit).
pub(crate) fn reached(
    (messages, max_messages): (u64, Option<u64>),
    (bytes, max_bytes): (u64, Option<u64>),
) -> Option<(String, String)> {
    if let Some(most) = max_messages.filter(|most| is_full_of_messages(messages, *most)) {
        return Some((
            format!("{messages} of {most} messages"),
            doubled("max-msgs", most),
        ));
    }
    let of_bytes = max_bytes.filter(|most| is_full_of_bytes(bytes, *most, messages));
    of_bytes.map(|most| (format!("{bytes} of {most} bytes"), doubled("max-bytes", most)))
}

impl StreamUse {
    pub(crate) fn reached(&self) -> Option<(String, String)> {
        reached((self.messages, self.max_messages), (self.bytes, self.max_bytes))
    }

    fn is_full(&self) -> bool {
        self.reached().is_some()
    }

    fn gone(&self) -> u64 {
        self.last_sequence.saturating_sub(self.messages)
    }
}

/// `None` if the consumer catches up before the stream drops its oldest unread message.
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
    // How long the stream keeps each message.
    let kept = time_for(now.messages, rate(earlier.gone(), now.gone(), between))?;
    let within = kept.saturating_sub(oldest);
    if caught_up.is_some_and(|caught_up| caught_up < within) {
        return None;
    }
    let what = format!(
        "the stream is full and drops its oldest messages: that of this consumer in {}, read or not",
        in_words(within)
    );
    let next = Command::from("outbox consumers lag").arg(&consumer.consumer);
    Some(Prospect::new(
        (Subject::Expiry, &consumer.consumer),
        Outlook::Runs,
        0.0,
        Some(within),
        what,
        next,
    ))
}
