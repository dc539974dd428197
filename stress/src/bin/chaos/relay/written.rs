//! Compares the stream with the writers' lists, without the tables, so that a lost row is detected.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::world::{Credited, Wrote};
use crate::Result;

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Written {
    pub(crate) written: u64,
    pub(crate) undecided: u64,
    pub(crate) missing: u64,
    pub(crate) copies: u64,
    pub(crate) foreign: u64,
    /// Number of messages whose first appearance on the stream is out of commit order.
    pub(crate) disordered: u64,
}

impl Written {
    pub(crate) fn compare(written: &[Wrote], stream: &[Vec<u8>]) -> Result<Self> {
        let (certain, undecided): (Vec<Wrote>, Vec<Wrote>) =
            written.iter().copied().partition(|wrote| wrote.is_certain);
        let written: Vec<Credited> = written.iter().map(|wrote| wrote.event).collect();
        let mut events: HashMap<Vec<u8>, Credited> = HashMap::new();
        for event in &written {
            events.insert(serde_json::to_vec(event)?, *event);
        }
        let (mut seen, mut appeared, mut foreign, mut copies) = (HashSet::new(), Vec::new(), 0, 0);
        for payload in stream {
            match events.get(payload) {
                Some(event) if seen.insert(*event) => appeared.push(*event),
                Some(_copy) => copies += 1,
                None => foreign += 1,
            }
        }
        let (expected, found) = (by_account(&written), by_account(&appeared));
        let is_disordered = |account: &u32| {
            let appeared = |number: &u32| {
                seen.contains(&Credited {
                    account: *account,
                    number: *number,
                })
            };
            let expected: Vec<u32> = expected[account].iter().copied().filter(appeared).collect();
            found.get(account).is_some_and(|found| *found != expected)
        };
        Ok(Self {
            written: certain.len() as u64,
            undecided: undecided.len() as u64,
            missing: certain
                .iter()
                .filter(|wrote| !seen.contains(&wrote.event))
                .count() as u64,
            copies,
            foreign,
            disordered: expected.keys().filter(|account| is_disordered(account)).count() as u64,
        })
    }

    pub(crate) fn is_balanced(&self) -> bool {
        self.missing == 0 && self.foreign == 0 && self.disordered == 0
    }
}

fn by_account(events: &[Credited]) -> HashMap<u32, Vec<u32>> {
    let mut accounts: HashMap<u32, Vec<u32>> = HashMap::new();
    for event in events {
        accounts.entry(event.account).or_default().push(event.number);
    }
    accounts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(account: u32, number: u32) -> Credited {
        Credited { account, number }
    }

    fn compare(stream: &[Credited]) -> (u64, u64, u64) {
        compare_with(stream, |_| true)
    }

    fn compare_with(stream: &[Credited], is_certain: fn(u32) -> bool) -> (u64, u64, u64) {
        let written = [event(1, 1), event(2, 2), event(1, 3), event(2, 4)].map(|event| Wrote {
            event,
            is_certain: is_certain(event.number),
        });
        let stream: Vec<_> = stream
            .iter()
            .map(|event| serde_json::to_vec(event).unwrap())
            .collect();
        let Written {
            written,
            undecided,
            missing,
            foreign,
            disordered,
            ..
        } = Written::compare(&written, &stream).unwrap();
        assert_eq!(written + undecided, 4);
        (missing, foreign, disordered)
    }

    #[test]
    fn stream_is_compared_with_the_written_events() {
        let all = [event(2, 2), event(1, 1), event(2, 2), event(2, 4), event(1, 3)];
        assert_eq!(
            compare(&all),
            (0, 0, 0),
            "copies and other accounts between them are fine"
        );
        assert_eq!(compare(&all[..4]), (1, 0, 0));
        assert_eq!(compare(&[]), (4, 0, 0));
        let overtaken = [event(1, 3), event(1, 1), event(2, 2), event(2, 4)];
        assert_eq!(compare(&overtaken), (0, 0, 1));
        let changed = [event(1, 1), event(2, 2), event(1, 3), event(1, 4)];
        assert_eq!(compare(&changed), (1, 1, 0));
    }
    #[test]
    fn uncertain_commits_may_be_missing_but_keep_their_order() {
        let is_certain = |number| number != 1;
        let with = |stream: &[Credited]| compare_with(stream, is_certain);
        assert_eq!(with(&[event(2, 2), event(1, 3), event(2, 4)]), (0, 0, 0));
        assert_eq!(
            with(&[event(1, 1), event(2, 2), event(1, 3), event(2, 4)]),
            (0, 0, 0)
        );
        assert_eq!(
            with(&[event(2, 2), event(1, 3), event(2, 4), event(1, 1)]),
            (0, 0, 1)
        );
    }
}
