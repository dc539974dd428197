//! Status reason for a full stream.
//!
//! Relays report this late, and cannot tell a full stream from a throttling one.

use std::cmp::Reverse;

use outbox_core::store::BACKLOG_COUNT_MAX;

use crate::forecast::StreamUse;
use crate::next::Command;
use crate::status::Status;
use crate::verdict::{Reason, State};
use crate::words::{counted, quoted};

impl Status {
    /// Adds a full stream, before reasons of its state. Stuck if it rejects unpublished messages,
    /// else degraded.
    pub fn see_stream(&mut self, stream: &StreamUse) {
        let Some(reason) = reason(stream, self.backlog.pending) else {
            return;
        };
        self.state = self.state.max(reason.state);
        self.reasons.insert(0, reason);
        self.reasons.sort_by_key(|reason| Reverse(reason.state));
    }
}

fn reason(stream: &StreamUse, pending: u64) -> Option<Reason> {
    let (holds, flag) = stream.reached()?;
    let edit = |flags: &str| match stream.name.as_str() {
        "" => Command::from("outbox doctor"),
        name => Command::new(format!("nats stream edit {} {flags}", quoted(name))),
    };
    let (state, what, next) = match (stream.drops_oldest, pending) {
        (true, _) => (
            State::Degraded,
            format!(
                "the stream is full ({holds}) and has discard policy old: it drops its oldest messages, read or not"
            ),
            edit(&format!("{flag} --discard=new")),
        ),
        (false, 0) => (
            State::Degraded,
            format!("the stream is full ({holds}): it refuses what does not fit"),
            edit(&flag),
        ),
        (false, pending) => {
            let at_least = if pending < BACKLOG_COUNT_MAX {
                ""
            } else {
                "at least "
            };
            let waiting = counted(pending, "message is", "messages are");
            (
                State::Stuck,
                format!(
                    "the stream is full ({holds}): it refuses what does not fit, and {at_least}{waiting} not published"
                ),
                edit(&flag),
            )
        }
    };
    Some(Reason::new(state, what, next))
}

#[cfg(test)]
mod tests {
    use outbox_testing::MemoryStore;

    use super::*;
    use crate::{BrokerCheck, status};

    fn full() -> StreamUse {
        StreamUse {
            name: "EVENTS".to_owned(),
            messages: 5,
            bytes: 500,
            max_messages: Some(5),
            ..StreamUse::default()
        }
    }

    #[test]
    fn a_full_stream_is_stuck_only_if_it_refuses_what_waits() {
        let check = |stream: StreamUse, pending, state, words: &str, next: &str| {
            let reason = reason(&stream, pending).expect("it is full");
            assert_eq!(
                (reason.state, reason.next.line().as_str()),
                (state, next),
                "{reason:?}"
            );
            assert!(reason.what.contains(words), "{reason:?}");
        };
        let edit = "nats stream edit EVENTS --max-msgs=10";
        check(full(), 0, State::Degraded, "(5 of 5 messages)", edit);
        check(full(), 1, State::Stuck, "1 message is not published", edit);
        let drops = StreamUse {
            drops_oldest: true,
            ..full()
        };
        let next = "nats stream edit EVENTS --max-msgs=10 --discard=new";
        check(drops, 1, State::Degraded, "drops its oldest messages", next);
        let of_bytes = StreamUse {
            max_messages: None,
            max_bytes: Some(550),
            ..full()
        };
        let next = "nats stream edit EVENTS --max-bytes=1100";
        check(of_bytes, 2, State::Stuck, "(500 of 550 bytes)", next);
        let unnamed = StreamUse {
            name: String::new(),
            ..full()
        };
        check(unnamed, 1, State::Stuck, "5 of 5", "outbox doctor");
    }

    #[test]
    fn a_stream_with_room_is_no_reason() {
        let room = StreamUse {
            max_messages: Some(6),
            max_bytes: Some(601),
            ..full()
        };
        assert_eq!(reason(&room, 1), None);
        let unbounded = StreamUse {
            max_messages: None,
            ..full()
        };
        assert_eq!(reason(&unbounded, 1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_full_stream_is_the_first_reason_of_those_that_are_as_bad() {
        let mut seen = status(&MemoryStore::new(), &BrokerCheck::NotAsked)
            .await
            .expect("status");
        seen.add(State::Stuck, "all relays fail", "outbox relay list");
        seen.backlog.pending = 1;
        seen.see_stream(&full());
        let reasons: Vec<&str> = seen.reasons.iter().map(|reason| reason.what.as_str()).collect();
        assert!(reasons[0].starts_with("the stream is full"), "{reasons:?}");
        assert_eq!(reasons[1], "all relays fail");
        assert_eq!(seen.state, State::Stuck);
        seen.backlog.pending = 0;
        seen.see_stream(&full());
        assert_eq!(seen.reasons[2].state, State::Degraded, "{:?}", seen.reasons);
        assert_eq!(seen.state, State::Stuck);
    }
}
