//! Rules for the table queries of the log relay, and for the purge.

use super::LogFixture;
use super::support::*;

/// A table query returns blocked, halted and pending aggregates, which the log must not overtake.
pub async fn a_look_returns_aggregates_that_the_table_serves_first<F: LogFixture>(fixture: &F) {
    let odd = "ä \"b\" \\ 'c' {},\u{1}\t\n";
    let names = ["blocked", "halted", "logged", "pending", "published", odd];
    for id in names {
        commit_one(fixture, id, 1).await;
    }
    let messages = logged(&read_all(fixture).await);
    let early: Vec<_> = [0, 1, 4, 5].map(|n| messages[n]).to_vec();
    adopt(fixture, &early).await;
    settle_pending(fixture, |row| match row.aggregate.id.as_str() {
        "halted" => dead(true),
        "published" => published(),
        _ => hindered(LONG),
    })
    .await;
    adopt(fixture, &messages[3..4]).await;
    let asked = names.map(aggregate);
    let look = look_at(fixture, &asked, &[]).await;
    let first: Vec<&str> = look.first.iter().map(|aggregate| aggregate.id.as_str()).collect();
    assert_eq!(first, ["blocked", "halted", "pending", odd]);
    assert!(look.any && !look.is_flooded);
    assert_eq!(look_at(fixture, &asked[4..5], &[]).await.first, []);
}

/// A table query reports whether any aggregate is blocked or has pending messages. If none is, the
/// relay need not query per message.
pub async fn a_look_reports_whether_there_are_exceptions<F: LogFixture>(fixture: &F) {
    for id in ["a", "b"] {
        commit_one(fixture, id, 1).await;
    }
    let messages = logged(&read_all(fixture).await);
    assert!(!look_at(fixture, &[], &[]).await.any, "all is the log's");
    adopt(fixture, &messages[..1]).await;
    assert!(look_at(fixture, &[], &[]).await.any, "a message is pending");
    settle_pending(fixture, |_| hindered(LONG)).await;
    assert!(look_at(fixture, &[], &[]).await.any, "an aggregate is blocked");
}

/// A table query reports a flood: more than `PENDING_MAX` pending messages.
pub async fn a_look_reports_a_flood_of_pending_messages<F: LogFixture>(fixture: &F) {
    let mut left = PENDING_MAX + 1;
    while left > 0 {
        let mut events = Events::new();
        for n in 0..left.min(2_000) {
            events.push(Probe::noted(format!("a{}", n % 50), 1));
        }
        left -= left.min(2_000);
        commit(fixture, events).await;
    }
    let messages = logged(&read_all(fixture).await);
    for chunk in messages[..PENDING_MAX].chunks(500) {
        adopt(fixture, chunk).await;
    }
    let asked = [aggregate("a7"), aggregate("other")];
    let look = look_at(fixture, &asked, &[]).await;
    assert!(look.any && !look.is_flooded, "the list has the maximal length");
    assert_eq!(look.first, asked[..1]);
    adopt(fixture, &messages[PENDING_MAX..]).await;
    assert!(look_at(fixture, &asked, &[]).await.is_flooded);
}

/// A table query returns the database clock, on which delays are measured.
pub async fn a_look_returns_the_database_clock<F: LogFixture>(fixture: &F) {
    let before = fixture.outbox().now().await;
    let now = look_at(fixture, &[], &[]).await.now;
    let after = fixture.outbox().now().await;
    assert!(before <= now && now <= after, "{before} {now} {after}");
}

/// A table query returns only the requested messages that still have the status `logged`.
pub async fn a_look_returns_the_logged_messages<F: LogFixture>(fixture: &F) {
    for id in ["logged", "pending", "published"] {
        commit_one(fixture, id, 1).await;
    }
    let messages = logged(&read_all(fixture).await);
    adopt(fixture, &messages[2..]).await;
    settle_pending(fixture, |_| published()).await;
    adopt(fixture, &messages[1..2]).await;
    let look = look_at(fixture, &[], &messages).await;
    assert_eq!(look.logged, ids(&messages[..1]));
    assert_eq!(look.unseen, [], "all can be seen");
    assert_eq!(look_at(fixture, &[], &messages[1..]).await.logged, []);
}

/// Waits before the purge, because some database clocks have millisecond resolution.
async fn purge_all<F: LogFixture>(fixture: &F) {
    tokio::time::sleep(Duration::from_millis(5)).await;
    purge(fixture, Duration::ZERO).await;
}

/// The purge keeps messages after the stored position, because a reader reads them again after a
/// crash.
pub async fn purge_keeps_messages_after_the_stored_position<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    for n in 1..=4 {
        commit_one(fixture, "early", n).await;
    }
    let early = read(fixture, &mut reader).await;
    purge_all(fixture).await;
    assert_eq!(stored(fixture.outbox()).await.len(), 4, "nothing is passed");
    reader.confirm(early[3].end).await.expect("confirm answers");
    for n in 1..=4 {
        commit_one(fixture, "late", n).await;
    }
    let late = logged(&read(fixture, &mut reader).await);
    // Some logs need later positions to determine which messages precede the stored position.
    let mut further = 0;
    eventually("the purge of what was passed", async || {
        commit_one(fixture, "further", 1).await;
        let found = read(fixture, &mut reader).await;
        if further == 0 {
            purge_all(fixture).await;
            for message in &late {
                assert!(
                    row_of(fixture, message.id).await.is_some(),
                    "the position did not pass the message"
                );
            }
        }
        further += 1;
        let end = found.last().expect("a message was committed").end;
        reader.confirm(end).await.expect("confirm answers");
        purge_all(fixture).await;
        let mut is_left = false;
        for message in &logged(&early) {
            is_left |= row_of(fixture, message.id).await.is_some();
        }
        !is_left
    })
    .await;
    commit_one(fixture, "last", 1).await;
    let last = logged(&read(fixture, &mut reader).await);
    purge_all(fixture).await;
    assert!(
        row_of(fixture, last[0].id).await.is_some(),
        "the position did not pass the message"
    );
}

/// The retention of a message with the status `logged` starts when it is recorded.
pub async fn logged_messages_are_kept_for_their_retention<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    for n in 1..=6 {
        commit_one(fixture, "a", n).await;
        let found = read(fixture, &mut reader).await;
        let end = found.last().expect("a message was committed").end;
        reader.confirm(end).await.expect("confirm answers");
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(purge(fixture, LONG).await, 0);
    assert_eq!(stored(fixture.outbox()).await.len(), 6);
}
