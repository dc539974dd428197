//! Status reasons about relays, leases and partitions.

use std::time::Duration;

use outbox::core::{ExpiredRelay, LiveRelay, OutboxReader, PartitionOwner, StoreError};

use super::{BacklogCounts, PartitionCounts};
use crate::admin::next::Next;
use crate::admin::relay_causes;
use crate::admin::verdict::{Reason, State};
use crate::admin::words::in_words;

/// A relay is behind if its oldest pending message has this age. Same value as the backlog alert in
/// `outbox-cli/monitoring`.
const BEHIND_AFTER: Duration = Duration::from_secs(60);

pub(super) struct RelayFacts {
    pub(super) live: Vec<LiveRelay>,
    expired: Vec<ExpiredRelay>,
    pub(super) partitions: PartitionCounts,
    leases: Option<Reason>,
}

impl RelayFacts {
    pub(super) async fn read(store: &impl OutboxReader) -> Result<Self, StoreError> {
        let live = store.relays().await?;
        let expired = match live.is_empty() {
            true => store.expired_relays().await?,
            false => Vec::new(),
        };
        let leases = store.partitions().await?;
        let count = |which: &dyn Fn(&&PartitionOwner) -> bool| {
            u16::try_from(leases.iter().filter(which).count()).unwrap_or(u16::MAX)
        };
        let partitions = PartitionCounts {
            owned: count(&|lease| lease.owner.is_some()),
            all: count(&|_| true),
        };
        Ok(Self {
            live,
            expired,
            partitions,
            leases: relay_causes::leases(&leases),
        })
    }
}

pub(super) fn of_relays(backlog: &BacklogCounts, facts: &RelayFacts) -> Vec<Reason> {
    let (relays, partitions) = (&facts.live, facts.partitions);
    let mut reasons: Vec<Reason> = facts.leases.clone().into_iter().collect();
    if relays.is_empty() {
        let mut what = relay_causes::none_alive(&facts.expired);
        let state = match backlog.pending {
            0 => State::Degraded,
            pending => {
                let messages = match pending {
                    1 => "1 message is".to_owned(),
                    _ => format!("{} messages are", backlog.pending_text()),
                };
                what = what.replacen("alive", &format!("alive, and {messages} not published"), 1);
                State::Stuck
            }
        };
        reasons.push(Reason::new(state, what, Next::start_relay()));
    }
    reasons.extend(relay_causes::reasons(relays));
    let unowned = partitions.all.saturating_sub(partitions.owned);
    if !relays.is_empty() && unowned > 0 {
        let what = format!(
            "{unowned} of {} partitions have no owner; normal for seconds after a start or a crash",
            partitions.all
        );
        reasons.push(Reason::new(State::Degraded, what, "outbox relay list"));
    }
    if !relays.is_empty() && backlog.oldest_unpublished.is_some_and(|age| age > BEHIND_AFTER) {
        let age = in_words(backlog.oldest_unpublished.unwrap_or_default());
        let what = format!("the oldest unpublished message has been due for {age}");
        reasons.push(Reason::new(State::Degraded, what, "outbox relay list"));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use outbox::core::{OwnerId, Registration, RelayHealth};

    use super::super::tests::{TTL, backlog, check};
    use super::*;

    fn facts(health: &[RelayHealth], partitions: PartitionCounts) -> RelayFacts {
        let relay = |health: &RelayHealth| LiveRelay {
            owner: OwnerId::fresh(),
            name: None,
            health: *health,
            expires_in: TTL,
            registration: Registration::default(),
            trouble: None,
        };
        RelayFacts {
            live: health.iter().map(relay).collect(),
            expired: Vec::new(),
            partitions,
            leases: None,
        }
    }

    const ALL: PartitionCounts = PartitionCounts { owned: 64, all: 64 };

    #[test]
    fn pending_messages_without_relay_are_stuck() {
        let none = PartitionCounts { owned: 0, all: 64 };
        check(
            &of_relays(&backlog(0), &facts(&[], none)),
            &[(State::Degraded, "no relay is alive")],
        );
        let many = BacklogCounts {
            pending_is_exact: false,
            pending_estimate: 2_000_000,
            ..backlog(100_000)
        };
        let expected = (
            State::Stuck,
            "and 100,000+ (about 2,000,000) messages are not published",
        );
        check(&of_relays(&many, &facts(&[], none)), &[expected]);
        let expected = (State::Stuck, "no relay is alive, and 3 messages");
        check(&of_relays(&backlog(3), &facts(&[], none)), &[expected]);
    }

    #[test]
    fn unowned_partitions_and_old_messages_are_degraded() {
        let healthy = |partitions| facts(&[RelayHealth::Healthy], partitions);
        let some = PartitionCounts { owned: 60, all: 64 };
        check(
            &of_relays(&backlog(0), &healthy(some)),
            &[(State::Degraded, "4 of 64 partitions")],
        );
        let old = BacklogCounts {
            oldest_unpublished: Some(Duration::from_secs(61)),
            ..backlog(1)
        };
        check(
            &of_relays(&old, &healthy(ALL)),
            &[(State::Degraded, "due for 61 s")],
        );
    }
}
