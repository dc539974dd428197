//! Status reason for a full stream.
//!
//! Relays report a full stream late, and cannot distinguish it from a throttled stream.

use outbox::core::store::BACKLOG_COUNT_MAX;

use crate::admin::doctor::StreamFacts;
use crate::admin::status::Status;
use crate::admin::verdict::{Reason, State};
use crate::admin::words::counted;

impl Status {
    /// Adds a reason for a full stream, before other reasons of its state: stuck if unpublished
    /// messages are rejected, otherwise degraded.
    pub fn see_stream(&mut self, stream: &StreamFacts) {
        let Some(reason) = reason(stream, self.backlog.pending) else {
            return;
        };
        self.add_cause(reason.state, reason.what, reason.next);
    }
}

pub(crate) fn reason(stream: &StreamFacts, pending: u64) -> Option<Reason> {
    let (holds, flag) = stream.reached()?;
    if stream.drops_oldest {
        let what = format!(
            "the stream is full ({holds}) and has discard policy old: it drops its oldest messages, read or not"
        );
        let next = stream.edit(&format!("{flag} --discard=new"));
        return Some(Reason::new(State::Degraded, what, next));
    }
    let mut what = format!("the stream is full ({holds}): it rejects new messages");
    let state = match pending {
        0 => State::Degraded,
        _ => {
            let at_least = if pending < BACKLOG_COUNT_MAX {
                ""
            } else {
                "at least "
            };
            let waiting = counted(pending, "message is", "messages are");
            what = format!("{what}, and {at_least}{waiting} not published");
            State::Stuck
        }
    };
    Some(Reason::new(state, what, stream.edit(&flag)))
}

#[cfg(test)]
mod tests {
    use outbox_testing::MemoryStore;

    use super::*;
    use crate::admin::{BrokerCheck, status};

    fn full() -> StreamFacts {
        StreamFacts {
            name: "EVENTS".to_owned(),
            messages: 5,
            bytes: 500,
            max_messages: Some(5),
            ..StreamFacts::default()
        }
    }

    #[test]
    fn full_stream_is_stuck_only_if_it_rejects() {
        let check = |stream: StreamFacts, pending, state, words: &str, next: &str| {
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
        let drops = StreamFacts {
            drops_oldest: true,
            ..full()
        };
        let next = "nats stream edit EVENTS --max-msgs=10 --discard=new";
        check(drops, 1, State::Degraded, "drops its oldest messages", next);
        let of_bytes = StreamFacts {
            max_messages: None,
            max_bytes: Some(550),
            ..full()
        };
        let next = "nats stream edit EVENTS --max-bytes=1100";
        check(of_bytes, 2, State::Stuck, "(500 of 550 bytes)", next);
    }

    #[test]
    fn a_stream_with_room_is_no_reason() {
        let room = StreamFacts {
            max_messages: Some(6),
            max_bytes: Some(601),
            ..full()
        };
        assert_eq!(reason(&room, 1), None);
        let unbounded = StreamFacts {
            max_messages: None,
            ..full()
        };
        assert_eq!(reason(&unbounded, 1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn full_stream_precedes_equally_severe_reasons() {
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
