//! The rule about a stream that is full.

use super::stream::StreamFacts;
use super::{Check, Diagnosis};
use crate::forecast::{is_full_of_bytes, is_full_of_messages};
use crate::status::State;

/// A bound that is reached: what the stream holds of it, and the flag that doubles it.
pub(super) fn reached(stream: &StreamFacts) -> Option<(String, String)> {
    let StreamFacts { messages, bytes, .. } = *stream;
    let of_messages = stream
        .max_messages
        .filter(|most| is_full_of_messages(messages, *most));
    if let Some(most) = of_messages {
        let flag = format!("--max-msgs={}", most.saturating_mul(2));
        return Some((format!("{messages} of {most} messages"), flag));
    }
    let of_bytes = stream
        .max_bytes
        .filter(|most| is_full_of_bytes(bytes, *most, messages));
    of_bytes.map(|most| {
        let flag = format!("--max-bytes={}", most.saturating_mul(2));
        (format!("{bytes} of {most} bytes"), flag)
    })
}

/// Whether there is no room for the next message.
pub(super) fn full(stream: &StreamFacts) -> Option<Diagnosis> {
    let (holds, flag) = reached(stream)?;
    let disk = "if the disk has room for it";
    Some(match stream.drops_oldest {
        true => Diagnosis::new(
            Check::Discard,
            State::Degraded,
            (
                "",
                format!(
                    "discard policy old, and the stream is full ({holds}): it drops its oldest messages, read or not"
                ),
            ),
            "room for what consumers have not read, and discard policy new: a full stream refuses, and messages wait in the outbox",
            format!("{}, {disk}", stream.edit(&format!("{flag} --discard=new"))),
        ),
        false => Diagnosis::new(
            Check::Stream,
            State::Stuck,
            (
                "",
                format!("the stream is full ({holds}): it refuses what does not fit"),
            ),
            "room for the next message: until then, what is recorded waits in the outbox",
            format!("{}, {disk}; or a shorter --max-age", stream.edit(&flag)),
        ),
    })
}
