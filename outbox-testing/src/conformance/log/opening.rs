//! Rules for opening the log: one reader, its start position, and crashes.

use super::LogFixture;
use super::support::*;

/// While one relay reads the log, `open` returns `None` to other relays.
pub async fn one_reader_at_a_time<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    for _ in 0..3 {
        let other = fixture.log().open().await.expect("open answers");
        assert!(other.is_none(), "two relays read");
    }
    commit_one(fixture, "a", 1).await;
    let found = read(fixture, &mut reader).await;
    assert_eq!(keys(&found), singles(&[("a", 1)]), "the reader is not disturbed");
}

/// Closing or dropping a reader lets another relay open the log.
pub async fn closed_reader_lets_another_relay_read<F: LogFixture>(fixture: &F) {
    opened(fixture).await.close().await;
    drop(opened(fixture).await);
    let mut reader = opened(fixture).await;
    commit_one(fixture, "a", 1).await;
    assert_eq!(keys(&read(fixture, &mut reader).await), singles(&[("a", 1)]));
}

/// A new reading returns unconfirmed messages again, with the same ids.
pub async fn a_reading_starts_after_the_stored_position<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    for n in 1..=4 {
        commit_one(fixture, "a", n).await;
    }
    let found = read(fixture, &mut reader).await;
    assert_eq!(found.len(), 4);
    reader.confirm(found[1].end).await.expect("confirm answers");
    reader.close().await;
    assert_eq!(read_all(fixture).await, found[2..]);
}

/// A replaced reader cannot move the stored position.
pub async fn a_replaced_reader_cannot_confirm<F: LogFixture>(fixture: &F) {
    for n in 1..=3 {
        commit_one(fixture, "a", n).await;
    }
    let mut replaced = opened(fixture).await;
    let found = read(fixture, &mut replaced).await;
    fixture.interrupt().await;
    let successor = opened(fixture).await;
    let stored = replaced.confirm(found[2].end).await;
    assert!(stored.is_err(), "a replaced reader has moved the position");
    successor.close().await;
    drop(replaced);
    assert_eq!(read_all(fixture).await, found);
}

/// An interrupted reading ends with an error.
pub async fn an_interrupted_reading_ends<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    read(fixture, &mut reader).await;
    fixture.interrupt().await;
    let read_to_the_end = async { while reader.next().await.is_ok() {} };
    let ended = tokio::time::timeout(std::time::Duration::from_secs(30), read_to_the_end).await;
    assert!(ended.is_ok(), "the reading did not report its end");
}

/// After the log is lost, each message that was not published is pending or comes from the new log.
pub async fn a_lost_log_loses_no_message<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    for id in ["decided", "read", "read"] {
        commit_one(fixture, id, 1).await;
    }
    let found = read(fixture, &mut reader).await;
    reader.confirm(found[0].end).await.expect("confirm answers");
    commit_one(fixture, "unread", 1).await;
    drop(reader);
    fixture.lose().await;
    commit_one(fixture, "between", 1).await;
    let mut reader = opened(fixture).await;
    commit_one(fixture, "after", 1).await;
    let from_log = logged(&read(fixture, &mut reader).await);
    for row in stored(fixture.outbox()).await {
        let comes = from_log.iter().any(|message| message.id == row.id);
        let is_out = row.status == MessageStatus::Pending || comes || row.aggregate.id == "decided";
        assert!(is_out, "{row:?} is lost");
        assert!(
            row.aggregate.id != "after" || comes,
            "the new log does not give {row:?}"
        );
    }
    assert_eq!(stored(fixture.outbox()).await.len(), 6);
}

/// If the future of `open` is dropped, the log can be opened again. No message changes its status.
pub async fn a_dropped_opening_leaves_nothing<F: LogFixture>(fixture: &F) {
    commit_one(fixture, "a", 1).await;
    for round in 0..DROPS {
        drop(dropped_after(round, fixture.log().open()).await);
    }
    let found = read_all(fixture).await;
    assert_eq!(keys(&found), singles(&[("a", 1)]));
    let status = row_of(fixture, found[0].messages[0].id)
        .await
        .map(|row| row.status);
    assert_eq!(status, Some(MessageStatus::Logged));
}

/// A dropped confirmation can be repeated, and the reading continues.
pub async fn a_dropped_confirmation_can_be_repeated<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    for n in 1..=u64::from(DROPS) {
        commit_one(fixture, "a", n).await;
    }
    let found = read(fixture, &mut reader).await;
    for (round, transaction) in (0..).zip(&found) {
        drop(dropped_after(round, reader.confirm(transaction.end)).await);
    }
    commit_one(fixture, "a", u64::from(DROPS) + 1).await;
    assert_eq!(read(fixture, &mut reader).await.len(), 1, "the reading goes on");
    let end = found.last().expect("messages were committed").end;
    reader.confirm(end).await.expect("confirm answers");
    reader.close().await;
    let left = read_all(fixture).await;
    assert_eq!(keys(&left), singles(&[("a", u64::from(DROPS) + 1)]));
}
