//! Rules for `adopt`, which changes messages from logged to pending.

use super::LogFixture;
use super::support::*;
use crate::Operator as _;
use crate::conformance::store::support::keys;

async fn status_of<F: LogFixture>(fixture: &F, id: MessageId) -> Option<MessageStatus> {
    row_of(fixture, id).await.map(|row| row.status)
}

async fn read_each<F: LogFixture>(fixture: &F, aggregates: &[&str]) -> Vec<Logged> {
    for aggregate in aggregates {
        commit_one(fixture, aggregate, 1).await;
    }
    let messages = logged(&read_all(fixture).await);
    assert_eq!(messages.len(), aggregates.len());
    messages
}

/// If the reader adopts a logged message, the table makes it pending, with no attempts used.
pub async fn adopted_messages_come_from_the_table<F: LogFixture>(fixture: &F) {
    let messages = read_each(fixture, &["a", "a", "a", "b"]).await;
    let (_, leases) = lease_all(fixture.outbox()).await;
    assert_eq!(
        fetch(fixture.outbox(), &leases, ALL).await,
        [],
        "nothing is the table's"
    );
    assert_eq!(adopt(fixture, &messages[..2]).await, ids(&messages[..2]));
    let rows = fetch(fixture.outbox(), &leases, ALL).await;
    assert_eq!(keys(&rows), "a1 a2");
    for row in &rows {
        assert_eq!((row.attempts, row.failures, row.waited), (0, 0, false));
    }
    for message in &messages[2..] {
        assert_eq!(status_of(fixture, message.id).await, Some(MessageStatus::Logged));
    }
}

/// A request to make logged messages pending ignores messages with another status. After a crash,
/// the relay cannot distinguish them.
pub async fn only_logged_messages_are_adopted<F: LogFixture>(fixture: &F) {
    let messages = read_each(fixture, &["published", "dead", "skipped"]).await;
    adopt(fixture, &messages).await;
    settle_pending(fixture, |row| match row.aggregate.id.as_str() {
        "published" => published(),
        _ => dead(true),
    })
    .await;
    let skipped = Selection::id(messages[2].id);
    fixture
        .outbox()
        .store()
        .skip(&skipped)
        .await
        .expect("skip answers");
    let before = stored(fixture.outbox()).await;
    adopt(fixture, &messages).await;
    assert_eq!(stored(fixture.outbox()).await, before);
}

/// A request to make logged messages pending ignores messages before the stored position. A
/// replaced reader may send a late request, which would publish these messages twice.
pub async fn messages_before_the_position_are_not_adopted<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    let events = Events::new()
        .with(Probe::noted("a", 1))
        .with(Probe::noted("a", 2));
    commit(fixture, events).await;
    commit_one(fixture, "b", 1).await;
    let found = read(fixture, &mut reader).await;
    reader.confirm(found[0].end).await.expect("confirm answers");
    let messages = logged(&found);
    assert_eq!(
        adopt(fixture, &messages).await,
        ids(&messages),
        "the messages are in the table"
    );
    let mut statuses = Vec::new();
    for message in &messages {
        statuses.push(status_of(fixture, message.id).await);
    }
    let (logged, pending) = (Some(MessageStatus::Logged), Some(MessageStatus::Pending));
    assert_eq!(statuses, [logged, logged, pending]);
    reader.close().await;
}

/// A request to make messages pending returns all requested messages that are in the table and no
/// longer logged.
pub async fn an_adoption_returns_the_messages_of_the_table<F: LogFixture>(fixture: &F) {
    let messages = read_each(fixture, &["a", "b", "c"]).await;
    adopt(fixture, &messages[..1]).await;
    settle_pending(fixture, |_| published()).await;
    adopt(fixture, &messages[1..2]).await;
    assert_eq!(adopt(fixture, &messages).await, ids(&messages));
    assert_eq!(adopt(fixture, &[]).await, []);
}

/// A request to make messages pending also returns deleted messages. Otherwise the relay would wait
/// for them forever.
pub async fn an_adoption_returns_deleted_messages<F: LogFixture>(fixture: &F) {
    let messages = read_each(fixture, &["a", "b"]).await;
    adopt(fixture, &messages[..1]).await;
    settle_pending(fixture, |_| Verdict::Published { keep: false }).await;
    assert_eq!(status_of(fixture, messages[0].id).await, None);
    // The store knows that the message is gone only after all older transactions end, including
    // transactions of other tests.
    eventually("certainty that the message is gone", async || {
        adopt(fixture, &messages[..1]).await == ids(&messages[..1])
    })
    .await;
    eventually("a look that reports the deletion", async || {
        let look = look_at(fixture, &[], &messages).await;
        look.logged == ids(&messages[1..]) && look.unseen.is_empty()
    })
    .await;
}

/// A message in the log that is not yet visible in the table does not count as deleted.
pub async fn an_invisible_message_does_not_count_as_deleted<F: LogFixture>(fixture: &F) {
    let events = Events::new()
        .with(Probe::noted("a", 1))
        .with(Probe::noted("b", 1));
    let messages = fixture.commit_unseen(events).await;
    assert_eq!(messages.len(), 2);
    for _ in 0..3 {
        assert_eq!(adopt(fixture, &messages).await, []);
        let look = look_at(fixture, &[], &messages).await;
        assert_eq!((look.logged, look.unseen), (Vec::new(), ids(&messages)));
    }
    fixture.show().await;
    eventually("sight of the commit", async || {
        let look = look_at(fixture, &[], &messages).await;
        look.logged == ids(&messages) && look.unseen.is_empty()
    })
    .await;
    assert_eq!(adopt(fixture, &messages).await, ids(&messages));
    for message in &messages {
        assert_eq!(status_of(fixture, message.id).await, Some(MessageStatus::Pending));
    }
}

/// A dropped request to make messages pending is atomic, and can be repeated.
pub async fn a_dropped_adoption_is_atomic<F: LogFixture>(fixture: &F) {
    for round in 0..DROPS {
        let aggregates = ["a", "b", "c", "d"].map(|id| format!("{id}{round}"));
        let aggregates = aggregates.each_ref().map(String::as_str);
        for aggregate in aggregates {
            commit_one(fixture, aggregate, 1).await;
        }
        let all = logged(&read_all(fixture).await);
        let messages = &all[all.len() - aggregates.len()..];
        drop(dropped_after(round, fixture.log().adopt(messages)).await);
        for _ in 0..5 {
            let adopted = messages.len() - look_at(fixture, &[], messages).await.logged.len();
            assert!(
                [0, messages.len()].contains(&adopted),
                "{adopted} messages adopted"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(adopt(fixture, messages).await, ids(messages));
        assert_eq!(look_at(fixture, &[], messages).await.logged, []);
    }
}

/// A new reading returns the log position of the last message that was changed from logged to
/// pending. The relay queries the table only up to this position.
pub async fn a_new_reading_returns_the_end_of_adopted_messages<F: LogFixture>(fixture: &F) {
    let adopted_to = async || {
        let reader = opened(fixture).await;
        let adopted_to = reader.adopted_to();
        reader.close().await;
        adopted_to
    };
    for n in 1..=3 {
        commit_one(fixture, "a", n).await;
    }
    let read = read_all(fixture).await;
    assert!(adopted_to().await < read[0].end, "nothing was adopted");
    adopt(fixture, &logged(&read[..2])).await;
    assert!(adopted_to().await >= read[1].end, "two messages were adopted");
    commit_one(fixture, "a", 4).await;
    let read = read_all(fixture).await;
    assert!(
        adopted_to().await < read[3].end,
        "the last message was recorded later"
    );
    fixture.lose().await;
    // The new log may return messages that were already made pending.
    let mut reader = opened(fixture).await;
    let adopted_to = reader.adopted_to();
    for transaction in super::support::read(fixture, &mut reader).await {
        let id = transaction.messages[0].id;
        let is_adopted = status_of(fixture, id).await == Some(MessageStatus::Pending);
        assert!(
            !is_adopted || transaction.end <= adopted_to,
            "{transaction:?} was adopted"
        );
    }
}
