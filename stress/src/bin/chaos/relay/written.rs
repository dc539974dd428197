//! The stream against the writer's own list. Neither the tables nor the relays are asked, so a row that vanished is noticed too.

use std::collections::{HashMap, HashSet};

use async_nats::jetstream;
use serde::Serialize;

use super::world::Credited;
use crate::Result;

/// The messages on the stream, compared with those that the writer committed.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Written {
    /// Events that the writer committed.
    pub(crate) written: u64,
    /// Of those, events that are not on the stream, word by word.
    pub(crate) missing: u64,
    /// Payloads on the stream that nobody wrote.
    pub(crate) foreign: u64,
    /// Accounts whose events first appear in another order than that of their commits.
    pub(crate) disordered: u64,
}

impl Written {
    /// `written` is in the order of the commits, `stream` in that of the stream.
    pub(crate) fn compare(written: &[Credited], stream: &[Vec<u8>]) -> Result<Self> {
        let mut events: HashMap<Vec<u8>, Credited> = HashMap::new();
        for event in written {
            events.insert(serde_json::to_vec(event)?, *event);
        }
        let (mut seen, mut appeared, mut foreign) = (HashSet::new(), Vec::new(), 0);
        for payload in stream {
            match events.get(payload) {
                Some(event) if seen.insert(*event) => appeared.push(*event),
                Some(_copy) => {}
                None => foreign += 1,
            }
        }
        let (expected, found) = (by_account(written), by_account(&appeared));
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
            written: written.len() as u64,
            missing: written.iter().filter(|event| !seen.contains(event)).count() as u64,
            foreign,
            disordered: expected.keys().filter(|account| is_disordered(account)).count() as u64,
        })
    }

    pub(crate) fn is_balanced(&self) -> bool {
        self.missing == 0 && self.foreign == 0 && self.disordered == 0
    }
}

/// The numbers of each account.
fn by_account(events: &[Credited]) -> HashMap<u32, Vec<u32>> {
    let mut accounts: HashMap<u32, Vec<u32>> = HashMap::new();
    for event in events {
        accounts.entry(event.account).or_default().push(event.number);
    }
    accounts
}

/// The payloads on the stream, in order.
pub(crate) async fn payloads(stream: &jetstream::stream::Stream) -> Result<Vec<Vec<u8>>> {
    use futures_util::StreamExt as _;
    use jetstream::consumer::{AckPolicy, pull};

    let consumer = stream
        .create_consumer(pull::Config {
            ack_policy: AckPolicy::None,
            ..pull::Config::default()
        })
        .await?;
    let expected = consumer.cached_info().num_pending;
    let mut messages = consumer.stream().max_messages_per_batch(5000).messages().await?;
    let mut payloads = Vec::new();
    while (payloads.len() as u64) < expected {
        let message = messages.next().await.ok_or("the stream ended early")??;
        payloads.push(message.payload.to_vec());
    }
    Ok(payloads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(account: u32, number: u32) -> Credited {
        Credited { account, number }
    }

    fn compare(stream: &[Credited]) -> (u64, u64, u64) {
        let written = [event(1, 1), event(2, 2), event(1, 3), event(2, 4)];
        let stream: Vec<_> = stream
            .iter()
            .map(|event| serde_json::to_vec(event).unwrap())
            .collect();
        let Written {
            written,
            missing,
            foreign,
            disordered,
        } = Written::compare(&written, &stream).unwrap();
        assert_eq!(written, 4);
        (missing, foreign, disordered)
    }

    #[test]
    fn the_stream_is_judged_by_what_was_written() {
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
}
