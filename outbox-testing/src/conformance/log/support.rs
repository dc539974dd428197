//! Helpers of the log suite.

use std::pin::pin;

use outbox_core::log::{Look, LookRequest};
use tokio::time::{sleep, timeout};

use super::LogFixture;
pub(super) use crate::conformance::store::StoreFixture as _;

pub(super) use crate::conformance::probe::{Probe, aggregate};
pub(super) use crate::conformance::store::support::{
    ALL, LONG, dead, fetch, hindered, lease_all, published, settled, state_of, stored,
};
pub(super) use crate::eventually;
pub(super) use crate::store_types::*;
pub(super) use outbox_core::log::{
    LogEvent, LogReader, Logged, LoggedMessage, MessageLog, PENDING_MAX, Position,
};
pub(super) use outbox_core::message::{Events, NewMessage};

pub(super) type ReaderOf<F> = <<F as LogFixture>::Log as MessageLog>::Reader;

const SOON: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Transaction {
    pub(super) messages: Vec<LoggedMessage>,
    pub(super) end: Position,
}

/// Opens the log. Retries, because a server may be slow to detect a closed reader.
pub(super) async fn opened<F: LogFixture>(fixture: &F) -> ReaderOf<F> {
    let mut reader = None;
    eventually("the opening of the log", async || {
        reader = fixture.log().open().await.expect("open answers");
        reader.is_some()
    })
    .await;
    reader.expect("the log was opened")
}

pub(super) async fn next<R: LogReader>(reader: &mut R) -> LogEvent {
    let event = timeout(SOON, reader.next()).await;
    event
        .expect("the log returns an event in time")
        .expect("the reading goes on")
}

pub(super) async fn read<F: LogFixture>(fixture: &F, reader: &mut ReaderOf<F>) -> Vec<Transaction> {
    let written = fixture.log().written().await.expect("written answers");
    let (mut transactions, mut messages, mut last) = (Vec::<Transaction>::new(), Vec::new(), Position(0));
    loop {
        match next(reader).await {
            LogEvent::Message(message) => messages.push(message),
            LogEvent::Commit(end) => {
                assert!(end > last, "{end:?} does not rise above {last:?}");
                last = end;
                let messages = std::mem::take(&mut messages);
                transactions.push(Transaction { messages, end });
            }
            LogEvent::Idle(position) => {
                assert!(position >= last, "{position:?} falls behind {last:?}");
                assert_eq!(messages, [], "a transaction has no end");
                last = position;
            }
        }
        if last >= written && messages.is_empty() {
            transactions.retain(|transaction| !transaction.messages.is_empty());
            return transactions;
        }
    }
}

pub(super) async fn read_all<F: LogFixture>(fixture: &F) -> Vec<Transaction> {
    let mut reader = opened(fixture).await;
    let transactions = read(fixture, &mut reader).await;
    reader.close().await;
    transactions
}

pub(super) async fn commit_one<F: LogFixture>(fixture: &F, aggregate: &str, n: u64) {
    commit(fixture, Events::new().with(Probe::noted(aggregate, n))).await;
}

pub(super) async fn commit<F: LogFixture>(fixture: &F, events: Events) {
    fixture
        .outbox()
        .commit(events)
        .await
        .expect("events are recorded");
}

pub(super) fn keys(transactions: &[Transaction]) -> Vec<Vec<(String, Option<u64>)>> {
    let of = |transaction: &Transaction| transaction.messages.iter().map(key).collect();
    transactions.iter().map(of).collect()
}

fn key(message: &LoggedMessage) -> (String, Option<u64>) {
    let read = message.row.message.as_ref().expect("the message is readable");
    (read.aggregate.id.clone(), read.sequence)
}

pub(super) fn singles(keys: &[(&str, u64)]) -> Vec<Vec<(String, Option<u64>)>> {
    let single = |(id, sequence): &(&str, u64)| vec![((*id).to_owned(), Some(*sequence))];
    keys.iter().map(single).collect()
}

pub(super) fn logged(transactions: &[Transaction]) -> Vec<Logged> {
    let messages = transactions.iter().flat_map(|transaction| &transaction.messages);
    messages
        .map(|message| Logged {
            id: message.id,
            transaction: message.transaction,
            passed_from: message.passed_from,
        })
        .collect()
}

pub(super) fn ids(messages: &[Logged]) -> Vec<MessageId> {
    let mut ids: Vec<MessageId> = messages.iter().map(|message| message.id).collect();
    ids.sort_unstable();
    ids
}

pub(super) async fn adopt<F: LogFixture>(fixture: &F, messages: &[Logged]) -> Vec<MessageId> {
    let mut ids = fixture.log().adopt(messages).await.expect("adopt answers");
    ids.sort_unstable();
    ids
}

pub(super) async fn look_at<F: LogFixture>(
    fixture: &F,
    aggregates: &[Aggregate],
    messages: &[Logged],
) -> Look {
    let request = LookRequest { aggregates, messages };
    let mut look = fixture.log().look(request).await.expect("look answers");
    look.logged.sort_unstable();
    look.unseen.sort_unstable();
    look.first.sort_by(|a, b| a.id.cmp(&b.id));
    look
}

pub(super) async fn row_of<F: LogFixture>(fixture: &F, id: MessageId) -> Option<StoredMessage> {
    state_of(fixture.outbox(), id).await
}

pub(super) async fn settle_pending<F: LogFixture>(
    fixture: &F,
    verdict: impl Fn(&FetchedRow) -> Verdict,
) -> Vec<FetchedRow> {
    let (owner, leases) = lease_all(fixture.outbox()).await;
    let rows = fetch(fixture.outbox(), &leases, ALL).await;
    for row in &rows {
        settled(fixture.outbox(), &leases, std::slice::from_ref(row), verdict(row)).await;
    }
    fixture
        .outbox()
        .store()
        .leave(owner)
        .await
        .expect("leave answers");
    rows
}

pub(super) async fn purge<F: LogFixture>(fixture: &F, older_than: Duration) -> u64 {
    let mut request = PurgeRequest {
        older_than: Some(older_than),
        keys_older_than: Duration::MAX,
        after: None,
        limit: std::num::NonZeroU32::new(3).expect("three is positive"),
    };
    let mut deleted = 0;
    // Each page of the purge deletes or skips at least one message.
    for _ in 0..1_000 {
        let purged = fixture.log().purge(request).await.expect("purge answers");
        deleted += purged.deleted;
        match purged.next {
            Some(next) => request.after = Some(next),
            None => return deleted,
        }
    }
    panic!("the purge never ends");
}

/// Polls the future for a time that depends on `round`. Returns `None` if the future was dropped.
pub(super) async fn dropped_after<T>(round: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    if round < 4 {
        let mut polls = 0;
        return std::future::poll_fn(|cx| {
            use std::task::Poll;
            if let Poll::Ready(answer) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            polls += 1;
            match polls > round {
                true => Poll::Ready(None),
                false => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        })
        .await;
    }
    let pause = sleep(Duration::from_millis(u64::from(round - 4) * 2));
    tokio::select! {
        biased;
        answer = &mut future => Some(answer),
        () = pause => None,
    }
}

pub(super) const DROPS: u32 = 12;
