//! Doctor rule for a full stream.

use super::stream::StreamFacts;
use super::{Check, Diagnosis};
use crate::forecast;
use crate::next::Next;
use crate::verdict::State;

pub(super) fn reached(stream: &StreamFacts) -> Option<(String, String)> {
    forecast::reached(
        (stream.messages, stream.max_messages),
        (stream.bytes, stream.max_bytes),
    )
}

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
            Next::and_advice(stream.edit(&format!("{flag} --discard=new")), disk),
        ),
        false => Diagnosis::new(
            Check::Stream,
            State::Stuck,
            (
                "",
                format!("the stream is full ({holds}): it refuses what does not fit"),
            ),
            "room for the next message: until then, what is recorded waits in the outbox",
            Next::and_advice(stream.edit(&flag), format!("{disk}; or set a shorter `max_age`")),
        ),
    })
}
