//! Promises to operators: waiting messages and dead letters are counted and listed, and operators can release them.

use outbox_core::event::DomainEvent as _;
use outbox_core::message::Events;

use super::StoreFixture;
use super::support::*;

/// The backlog counts pending messages, those of them that wait, dead letters, and blocked aggregates.
pub async fn backlog_counts_waiting_messages_and_dead_letters<F: StoreFixture>(fixture: &F) {
    assert_eq!(store(fixture).backlog().await, Backlog::default());
    commit_each(fixture, &["a", "a", "b", "c", "d", "d"]).await;
    let expected = Backlog {
        pending: 6,
        pending_estimate: 6,
        ..Backlog::default()
    };
    assert_eq!(counts(fixture).await, expected);
    assert!(store(fixture).backlog().await.oldest_unpublished.is_some());
    let (leases, rows) = take_all(fixture).await;
    settled(fixture, &leases, &first(&rows, "a"), dead(true)).await;
    settled(fixture, &leases, &only(&rows, "b"), dead(false)).await;
    settled(fixture, &leases, &only(&rows, "c"), published()).await;
    settled(fixture, &leases, &first(&rows, "d"), hindered(LONG)).await;
    fetch(fixture, &leases, ALL).await;
    let expected = Backlog {
        pending: 3,
        pending_estimate: 3,
        waiting: 3,
        dead_letters: 2,
        halted_aggregates: 1,
        blocked_aggregates: 2,
        oldest_unpublished: None,
    };
    assert_eq!(counts(fixture).await, expected);
    assert!(store(fixture).resume(&aggregate("d")).await);
    assert_eq!(
        store(fixture).backlog().await.blocked_aggregates,
        1,
        "a block that has ended does not count"
    );
}

/// The age of the backlog is that of the oldest message that should have been published, whatever its status: failed messages count, messages that are
/// meant to wait do not.
pub async fn backlog_age_covers_failed_messages<F: StoreFixture>(fixture: &F) {
    let age = async || store(fixture).backlog().await.oldest_unpublished;
    commit_delayed(fixture, Probe::noted("delayed", 1), LONG).await;
    let (leases, rows) = with_rows(fixture, &["delayed", "halted", "halted"]).await;
    settled(fixture, &leases, &first(&rows, "halted"), dead(true)).await;
    fetch(fixture, &leases, ALL).await;
    assert_eq!(age().await, None, "delayed and halted messages are meant to wait");

    for probe in [Probe::noted("failed", 1), Probe::sampled("alone", 1)] {
        let id = probe.aggregate_id().to_string();
        commit(fixture, Events::new().with(probe)).await;
        assert!(age().await.is_some(), "a pending message is due: {id}");
        let rows = only(&fetch(fixture, &leases, ALL).await, &id);
        settled(fixture, &leases, &rows, failed(LONG)).await;
        assert!(
            age().await.is_some_and(|age| age < LONG),
            "a failed message is due: {id}"
        );
        let pause = PauseRequest {
            aggregate_type: Some(AGGREGATE.to_owned()),
            reason: "maintenance".to_owned(),
            by: "alice".to_owned(),
            lasts: None,
        };
        store(fixture).pause(&pause).await;
        assert_eq!(age().await, None, "a paused message is meant to wait: {id}");
        store(fixture).unpause(Some(AGGREGATE)).await;
        assert!(age().await.is_some(), "the pause has ended: {id}");
        let waiting: Vec<_> = rows
            .into_iter()
            .map(|row| FetchedRow { waited: true, ..row })
            .collect();
        settled(fixture, &leases, &waiting, published()).await;
        assert_eq!(age().await, None, "a published message is not due: {id}");
    }
}

/// Pages begin with the newest messages, and follow each other without a gap or an overlap, also with a status.
pub async fn pages_begin_with_the_newest_messages<F: StoreFixture>(fixture: &F) {
    let (leases, row) = with_dead(fixture, &["a", "b", "c", "d", "e"], false).await;
    let rows = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &only(&rows, "c"), published()).await;
    settled(fixture, &leases, &only(&rows, "e"), dead(false)).await;
    let read =
        async |selection: &Selection, from, most| store(fixture).page(selection, from, limit(most)).await;
    for (selection, expected) in [
        (Selection::all(), vec!["e", "d", "c", "b", "a"]),
        (Selection::all().status(MessageStatus::Pending), vec!["d", "b"]),
        (Selection::dead_letters(), vec!["e", "a"]),
    ] {
        let (mut ids, mut from) = (Vec::new(), PageFrom::Newest);
        loop {
            let page = read(&selection, from, 2).await;
            let Some(last) = page.last() else { break };
            from = PageFrom::Before(Place {
                row_id: last.row_id,
                id: last.id,
            });
            ids.extend(page.into_iter().map(|message| message.aggregate.id));
        }
        assert_eq!(ids, expected, "{selection:?}");
    }
    let later = read(&Selection::all(), PageFrom::After(id_of(&row)), 3).await;
    let later: Vec<_> = later
        .iter()
        .map(|message| message.aggregate.id.as_str())
        .collect();
    assert_eq!(later, ["b", "c", "d"]);
}

/// The list shows the data needed to decide, oldest first, and no more rows than requested.
pub async fn messages_are_listed_oldest_first<F: StoreFixture>(fixture: &F) {
    let (leases, row) = with_dead(fixture, &["a", "b", "c"], true).await;
    let rows = only(&fetch(fixture, &leases, ALL).await, "b");
    settled(fixture, &leases, &rows, dead(false)).await;

    let listed = list(fixture, &Selection::dead_letters()).await;
    let ids: Vec<_> = listed.iter().map(|message| message.id).collect();
    assert_eq!(ids, [id_of(&row), id_of(&rows[0])]);
    let message = row.message.as_ref().expect("the row is readable");
    let expected = StoredMessage {
        row_id: row.row_id,
        id: message.id,
        event_id: message.id.into(),
        aggregate: row.aggregate.clone(),
        sequence: Some(1),
        event_type: "probe.noted".to_owned(),
        status: MessageStatus::Dead,
        attempts: 1,
        failures: listed[0].failures,
        error: Some("refused for good".to_owned()),
        halts: true,
        created_at: message.created_at,
        published_at: None,
    };
    assert_eq!(listed[0], expected);
    assert!(!listed[1].halts);
    let one = store(fixture)
        .list(&Selection::dead_letters(), NonZeroU32::MIN)
        .await;
    assert_eq!(one, listed[..1]);
}

/// Commits messages that differ in every criterion of a selection, and settles them differently.
async fn with_variety<F: StoreFixture>(fixture: &F) -> Vec<StoredMessage> {
    let events = [
        Probe::noted("a", 1),
        Probe::observed("a", 2),
        Probe::noted("b", 3),
        Probe::sampled("b", 4),
        Probe::noted("c", 5),
    ];
    for event in events {
        commit(fixture, Events::new().with(event)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (leases, rows) = take_all(fixture).await;
    settled(fixture, &leases, &rows[..1], published()).await;
    settled(fixture, &leases, &rows[2..3], hindered(LONG)).await;
    settled(fixture, &leases, &rows[3..4], dead(false)).await;
    let all = list(fixture, &Selection::all()).await;
    let statuses: Vec<_> = all.iter().map(|message| message.status).collect();
    let expected = {
        use MessageStatus::{Dead, Pending, Published, Waiting};
        [Published, Pending, Waiting, Dead, Pending]
    };
    assert_eq!(statuses, expected);
    all
}

/// Each criterion of a selection narrows the list, and several together narrow it further.
pub async fn a_selection_narrows_the_list<F: StoreFixture>(fixture: &F) {
    let all = with_variety(fixture).await;
    type Wanted = Box<dyn Fn(&StoredMessage) -> bool + Send>;
    let mut cases: Vec<(Selection, Wanted)> = vec![
        (Selection::all().aggregate_type("probe"), Box::new(|_| true)),
        (Selection::all().aggregate_type("other"), Box::new(|_| false)),
        (
            Selection::all().event_type("probe.observed"),
            Box::new(|message| message.event_type == "probe.observed"),
        ),
        (
            Selection::all()
                .aggregate(&aggregate("b"))
                .event_type("probe.noted"),
            Box::new(|message| message.aggregate.id == "b" && message.sequence.is_some()),
        ),
    ];
    for one in all.clone() {
        let (row_id, id, status, time) = (one.row_id, one.id, one.status, one.created_at);
        let key = one.aggregate;
        cases.push((Selection::id(id), Box::new(move |m| m.id == id)));
        cases.push((
            Selection::all().status(status),
            Box::new(move |m| m.status == status),
        ));
        cases.push((
            Selection::all().aggregate(&key),
            Box::new(move |m| m.aggregate == key),
        ));
        cases.push((
            Selection::all().after(row_id),
            Box::new(move |m| m.row_id > row_id),
        ));
        cases.push((
            Selection::all().recorded_from(time),
            Box::new(move |m| m.created_at >= time),
        ));
        cases.push((
            Selection::all().recorded_until(time),
            Box::new(move |m| m.created_at < time),
        ));
    }
    for (selection, is_wanted) in cases {
        let expected: Vec<_> = all.iter().filter(|message| is_wanted(message)).cloned().collect();
        assert_eq!(list(fixture, &selection).await, expected, "{selection:?}");
    }
}

/// Blocked aggregates are listed with the cause or the end of their block: halted ones first, then by the end of their
/// block.
pub async fn blocked_aggregates_are_listed_halted_ones_first<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c", "d"]).await;
    settled(fixture, &leases, &only(&rows, "a"), hindered(LONG)).await;
    settled(fixture, &leases, &only(&rows, "b"), hindered(Duration::ZERO)).await;
    settled(fixture, &leases, &only(&rows, "c"), dead(true)).await;
    let listed = blocked(fixture).await;
    let order: Vec<_> = listed
        .iter()
        .map(|blocked| blocked.aggregate.id.as_str())
        .collect();
    assert_eq!(order, ["c", "b", "a"]);
    let by: Vec<_> = listed.iter().map(|blocked| blocked.halted_by).collect();
    assert_eq!(by, [Some(only(&rows, "c")[0].row_id), None, None]);
    assert_eq!(listed[0].blocked_for, None);
    assert_eq!(listed[1].blocked_for, Some(Duration::ZERO));
    assert!(
        listed[2]
            .blocked_for
            .is_some_and(|blocked_for| blocked_for > LONG / 2 && blocked_for <= LONG)
    );
    let two = store(fixture).blocked(limit(2)).await;
    assert_eq!(two.len(), 2);
}

/// An operator can end a back-off, of one aggregate alone.
pub async fn resume_ends_a_block<F: StoreFixture>(fixture: &F) {
    let leases = block_each(fixture, &["a", "b", "a"], LONG).await;
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    assert!(store(fixture).resume(&aggregate("a")).await);
    assert_eq!(
        keys(&fetch_waiting(fixture, &leases).await),
        [("a", Some(1)), ("a", Some(2))]
    );
    assert!(!store(fixture).resume(&aggregate("x")).await, "x is not blocked");
}

/// A halted aggregate waits for a decision on the message that halts it, and for nothing else.
pub async fn resume_does_not_end_a_halt<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a", "a"], Duration::ZERO).await;
    let rows = first(&fetch_waiting(fixture, &leases).await, "a");
    settled(fixture, &leases, &rows, dead(true)).await;
    assert!(!store(fixture).resume(&aggregate("a")).await);
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    assert_eq!(store(fixture).backlog().await.halted_aggregates, 1);
}
