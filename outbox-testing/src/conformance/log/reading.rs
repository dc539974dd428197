//! Rules for reading the log.

use super::LogFixture;
use super::support::*;
use crate::conformance::store::OpenTransaction;
use crate::not_applicable;

/// The preflight of a healthy log may return warnings, but no error.
pub async fn a_healthy_log_passes_its_preflight<F: LogFixture>(fixture: &F) {
    let passed = fixture.log().preflight().await;
    assert!(passed.is_ok(), "{passed:?}");
}

/// A reading returns each committed message once, and its status in the table is `logged`.
pub async fn a_reading_returns_every_message_once<F: LogFixture>(fixture: &F) {
    commit_one(fixture, "a", 1).await;
    commit_one(fixture, "b", 2).await;
    let mut reader = opened(fixture).await;
    let mut all = read(fixture, &mut reader).await;
    commit_one(fixture, "a", 3).await;
    all.extend(read(fixture, &mut reader).await);
    assert_eq!(read(fixture, &mut reader).await, [], "nothing is left");
    assert_eq!(keys(&all), singles(&[("a", 1), ("b", 1), ("a", 2)]));
    for row in stored(fixture.outbox()).await {
        assert_eq!(row.status, MessageStatus::Logged);
    }
}

/// A message read from the log equals its table row.
pub async fn a_log_message_equals_its_table_row<F: LogFixture>(fixture: &F) {
    // Databases store whole microseconds.
    let later = (fixture.outbox().now().await + Duration::from_secs(3600)).replace_nanosecond(5_000);
    let later = later.expect("a number of nanoseconds");
    let delayed = NewMessage::from_event(&Probe::sampled("u", 4)).expect("the probe can be encoded");
    let events = Events::new()
        .with(Probe::noted("ä b\"c'd,{}\\", 1))
        .with(Probe::observed("ä b\"c'd,{}\\", 2).with_filler("ü\t\n\u{1}".repeat(10_000)))
        .with(Probe::noted("k", 3).with_dedup_key("a key"))
        .with(Probe::sampled("u", 5))
        .with(delayed.available_at(later));
    commit(fixture, events).await;
    let of_log = read_all(fixture).await;
    adopt(fixture, &logged(&of_log)).await;
    let (_, leases) = lease_all(fixture.outbox()).await;
    let of_table: Vec<FetchedRow> = fetch(fixture.outbox(), &leases, ALL).await;
    let messages: Vec<_> = of_log
        .into_iter()
        .flat_map(|transaction| transaction.messages)
        .collect();
    let until: Vec<_> = messages.iter().map(|message| message.available_at).collect();
    assert_eq!(until, [None, None, None, None, Some(later)]);
    for message in messages.into_iter().take(4) {
        let found = of_table.iter().find(|row| row.row_id == message.row.row_id);
        let found = found.expect("the table has the message").clone();
        let read = found.message.as_ref().expect("the message is readable");
        assert_eq!((message.id, message.created_at), (read.id, read.created_at));
        let ageless = FetchedRow {
            age: Duration::ZERO,
            ..found
        };
        assert_eq!(message.row, ageless);
    }
}

/// A reading returns whole transactions in commit order.
pub async fn transactions_come_whole_and_in_commit_order<F: LogFixture>(fixture: &F) {
    if !fixture.outbox().overlapping_transactions() {
        return not_applicable("one transaction at a time");
    }
    let begun = |id: &str| {
        Events::new()
            .with(Probe::noted(id, 1))
            .with(Probe::observed(id, 2))
    };
    let first = fixture
        .outbox()
        .begin(begun("late"))
        .await
        .expect("events are recorded");
    let second = fixture
        .outbox()
        .begin(begun("early"))
        .await
        .expect("events are recorded");
    let mut reader = opened(fixture).await;
    second.commit().await;
    let mut many = Events::new();
    for n in 0..300 {
        many.push(Probe::noted(format!("m{}", n % 7), n));
    }
    commit(fixture, many).await;
    first.commit().await;
    let transactions = read(fixture, &mut reader).await;
    let sizes: Vec<usize> = transactions.iter().map(|one| one.messages.len()).collect();
    assert_eq!(sizes, [2, 300, 2]);
    let whole = |id: &str| vec![(id.to_owned(), Some(1)), (id.to_owned(), Some(2))];
    let found = keys(&transactions);
    assert_eq!((&found[0], &found[2]), (&whole("early"), &whole("late")));
    let expected: Vec<_> = (0..300_u64)
        .map(|n| (format!("m{}", n % 7), Some(n / 7 + 1)))
        .collect();
    assert_eq!(found[1], expected);
}

/// A reading never returns rolled-back messages.
pub async fn the_log_never_returns_rolled_back_messages<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    for n in 1..=5 {
        let events = Events::new().with(Probe::noted("rolled-back", n));
        fixture
            .outbox()
            .roll_back(events)
            .await
            .expect("the transaction can be rolled back");
        commit_one(fixture, "a", n).await;
    }
    let expected: Vec<_> = (1..=5).map(|n| ("a", n)).collect();
    let transactions = read(fixture, &mut reader).await;
    assert_eq!(keys(&transactions), singles(&expected));
    for message in logged(&transactions) {
        assert!(
            row_of(fixture, message.id).await.is_some(),
            "the message was never recorded"
        );
    }
}

/// While no messages are recorded, a reading reports positions after commits without messages.
pub async fn an_idle_reading_reports_its_position<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    loop {
        match next(&mut reader).await {
            LogEvent::Idle(_) => return,
            LogEvent::Commit(_) => {}
            LogEvent::Message(message) => panic!("nothing was recorded, and {message:?} came"),
        }
    }
}

/// Writes outside the outbox advance a reading, so that an idle outbox retains no WAL.
pub async fn unrelated_writes_advance_a_reading<F: LogFixture>(fixture: &F) {
    commit_one(fixture, "a", 1).await;
    let mut reader = opened(fixture).await;
    let transactions = read(fixture, &mut reader).await;
    let mut last = transactions.last().expect("a message was committed").end;
    for _ in 0..3 {
        fixture.write_elsewhere().await;
        loop {
            match next(&mut reader).await {
                LogEvent::Idle(position) | LogEvent::Commit(position) if position > last => {
                    last = position;
                    break;
                }
                LogEvent::Message(message) => panic!("{message:?} was read before"),
                _ => {}
            }
        }
    }
}

/// Dropping `next` loses no event.
pub async fn a_dropped_wait_for_the_log_loses_nothing<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    for n in 1..=5 {
        commit_one(fixture, "a", n).await;
    }
    let (mut round, mut found) = (0, Vec::new());
    eventually("the last message", async || {
        round = (round + 1) % DROPS;
        for polls in [0, round] {
            if let Some(event) = dropped_after(polls, reader.next()).await
                && let LogEvent::Message(message) = event.expect("the reading goes on")
            {
                found.push(message.row.message.map(|message| message.sequence));
            }
        }
        found.len() >= 5
    })
    .await;
    let expected: Vec<_> = (1..=5).map(|n| Ok(Some(n))).collect();
    assert_eq!(found, expected);
}

/// Messages that are not confirmed increase the reported size of the retained log.
pub async fn undecided_messages_increase_the_retained_log<F: LogFixture>(fixture: &F) {
    let mut reader = opened(fixture).await;
    let before = reader.retained().await.expect("retained answers").bytes;
    eventually("growth of what is kept", async || {
        commit_one(fixture, "a", 1).await;
        reader.retained().await.expect("retained answers").bytes > before
    })
    .await;
}
