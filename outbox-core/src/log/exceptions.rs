//! What the relay of the log knows of the messages that the relay of the table has to publish first.
//!
//! Invariant: an aggregate of which a message is pending in the table is named here, or blocked in the table, from before the message was adopted until the
//! table was seen without it. So no message of the log overtakes it, and while nothing is named and nothing blocked, the table need not be asked.

use std::collections::{HashMap, HashSet};

use super::Look;
use crate::message::{Aggregate, MessageId};

/// What was adopted and may not be published yet.
#[derive(Debug)]
pub(super) struct Exceptions {
    /// The last message of each aggregate that was adopted, with its row id.
    last: HashMap<Aggregate, (i64, MessageId)>,
    /// Whether any aggregate may be blocked.
    pub(super) any_blocked: bool,
    /// Raised when an adoption begins and when it ends: a look that began before knows nothing of it.
    pub(super) adoptions: u64,
    /// The pending messages of the table are known.
    is_loaded: bool,
}

impl Default for Exceptions {
    fn default() -> Self {
        Self {
            last: HashMap::new(),
            any_blocked: true,
            adoptions: 0,
            is_loaded: false,
        }
    }
}

impl Exceptions {
    pub(super) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// The pending messages of the table, in the order of their row ids.
    pub(super) fn load(&mut self, pending: Vec<(Aggregate, MessageId)>) {
        for (aggregate, id) in pending {
            // Of a message that was adopted meanwhile, the row id is known.
            let known = self.last.get(&aggregate).map_or(i64::MIN, |(row_id, _)| *row_id);
            if known == i64::MIN {
                self.last.insert(aggregate, (i64::MIN, id));
            }
        }
        self.is_loaded = true;
    }

    /// An adoption of these messages begins or has ended.
    pub(super) fn adopted<'a>(&mut self, messages: impl Iterator<Item = (&'a Aggregate, i64, MessageId)>) {
        for (aggregate, row_id, id) in messages {
            match self.last.get_mut(aggregate) {
                Some(last) if last.0 < row_id => *last = (row_id, id),
                Some(_) => {}
                None => {
                    self.last.insert(aggregate.clone(), (row_id, id));
                }
            }
        }
        self.adoptions += 1;
        self.any_blocked = true;
    }

    /// Whether messages of this aggregate have to wait for the table.
    pub(super) fn holds(&self, aggregate: &Aggregate) -> bool {
        self.last.contains_key(aggregate)
    }

    pub(super) fn len(&self) -> usize {
        self.last.len()
    }

    /// The last messages of these aggregates, and of others up to `max`.
    pub(super) fn last_of(
        &self,
        aggregates: &HashSet<&Aggregate>,
        max: usize,
    ) -> Vec<(Aggregate, MessageId)> {
        let last = |aggregate: &Aggregate| {
            let (_, id) = self.last.get(aggregate)?;
            Some((aggregate.clone(), *id))
        };
        let mut found: Vec<_> = aggregates
            .iter()
            .filter_map(|aggregate| last(aggregate))
            .collect();
        let others = self
            .last
            .iter()
            .filter(|(aggregate, _)| !aggregates.contains(aggregate));
        let room = max.saturating_sub(found.len());
        found.extend(
            others
                .take(room)
                .map(|(aggregate, (_, id))| (aggregate.clone(), *id)),
        );
        found
    }

    /// The table has answered a look for these messages, which began after this many adoptions.
    pub(super) fn looked(&mut self, asked: &[(Aggregate, MessageId)], look: &Look, adoptions: u64) {
        for (aggregate, id) in asked {
            let is_current = self.last.get(aggregate).is_some_and(|(_, last)| last == id);
            // One that is still logged is being adopted.
            let is_left = look.open.contains(id) || look.logged.contains(id);
            if is_current && !is_left {
                self.last.remove(aggregate);
            }
        }
        self.any_blocked = look.any_blocked || self.adoptions != adoptions;
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    fn id(n: u128) -> MessageId {
        MessageId::from(uuid::Uuid::from_u128(n))
    }

    fn look() -> Look {
        Look {
            blocked: Vec::new(),
            any_blocked: false,
            logged: Vec::new(),
            open: Vec::new(),
            now: OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn an_aggregate_is_held_until_its_last_adopted_message_is_seen_to_be_gone() {
        let (a, b) = (Aggregate::new("order", "a"), Aggregate::new("order", "b"));
        let mut exceptions = Exceptions::default();
        exceptions.load(vec![(a.clone(), id(1))]);
        exceptions.adopted([(&a, 7, id(7)), (&a, 6, id(6)), (&b, 9, id(9))].into_iter());
        let asked = exceptions.last_of(&HashSet::from([&a]), 1);
        assert_eq!(asked, [(a.clone(), id(7))]);
        for still_there in [
            Look {
                open: vec![id(7)],
                ..look()
            },
            Look {
                logged: vec![id(7)],
                ..look()
            },
        ] {
            exceptions.looked(&asked, &still_there, 1);
            assert!(exceptions.holds(&a));
        }
        exceptions.looked(&[(a.clone(), id(6))], &look(), 1);
        assert!(
            exceptions.holds(&a),
            "a look for an earlier message proves nothing"
        );
        exceptions.looked(&asked, &look(), 1);
        assert!(!exceptions.holds(&a) && exceptions.holds(&b));
    }

    /// A look that began before an adoption does not know of the block that follows from it.
    #[test]
    fn a_look_from_before_an_adoption_does_not_say_that_nothing_is_blocked() {
        let a = Aggregate::new("order", "a");
        let mut exceptions = Exceptions::default();
        assert!(exceptions.any_blocked, "nobody has looked yet");
        let before = exceptions.adoptions;
        exceptions.adopted(std::iter::once((&a, 1, id(1))));
        exceptions.looked(&[], &look(), before);
        assert!(exceptions.any_blocked);
        exceptions.looked(&[], &look(), exceptions.adoptions);
        assert!(!exceptions.any_blocked);
    }
}
