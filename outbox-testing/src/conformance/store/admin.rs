//! Rules for operator queries: backlog, lists and resume.

use outbox_core::event::DomainEvent as _;

use super::StoreFixture;
use super::support::*;

/// The backlog counts pending and waiting messages, dead letters and blocks.
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
    let blocked = store(fixture).backlog().await.blocked_aggregates;
    assert_eq!(blocked, 1, "a block that has ended does not count");
}

/// The backlog age covers failed messages, but not delayed, halted or paused messages.
pub async fn backlog_age_covers_failed_messages<F: StoreFixture>(fixture: &F) {
    let age = async || store(fixture).backlog().await.oldest_unpublished;
    commit_delayed(fixture, Probe::noted("delayed", 1), LONG).await;
    let (leases, rows) = with_rows(fixture, &["delayed", "halted", "halted"]).await;
    settled(fixture, &leases, &first(&rows, "halted"), dead(true)).await;
    fetch(fixture, &leases, ALL).await;
    assert_eq!(age().await, None, "delayed and halted messages must wait");

    for probe in [Probe::noted("failed", 1), Probe::sampled("alone", 1)] {
        let id = probe.aggregate_id().to_string();
        commit_all(fixture, [probe]).await;
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
        assert_eq!(age().await, None, "a paused message must wait: {id}");
        store(fixture).unpause(Some(AGGREGATE)).await;
        assert!(age().await.is_some(), "the pause has ended: {id}");
        let waited = |row| FetchedRow { waited: true, ..row };
        let waiting: Vec<_> = rows.into_iter().map(waited).collect();
        settled(fixture, &leases, &waiting, published()).await;
        assert_eq!(age().await, None, "a published message is not due: {id}");
    }
}

/// Pages start at the newest message and have no gap or overlap.
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
    assert_eq!(
        ids(later.iter().map(|message| &message.aggregate)),
        ["b", "c", "d"]
    );
}

/// The list has all messages, oldest first, up to the limit.
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
    let dead_letters = Selection::dead_letters();
    assert_eq!(
        store(fixture).list(&dead_letters, NonZeroU32::MIN).await,
        listed[..1]
    );
}

async fn with_variety<F: StoreFixture>(fixture: &F) -> Vec<StoredMessage> {
    let events = [
        Probe::noted("a", 1),
        Probe::observed("a", 2),
        Probe::noted("b", 3),
    ];
    for event in events
        .into_iter()
        .chain([Probe::sampled("b", 4), Probe::noted("c", 5)])
    {
        commit_all(fixture, [event]).await;
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

/// Each criterion of a selection narrows the list.
pub async fn a_selection_narrows_the_list<F: StoreFixture>(fixture: &F) {
    let all = with_variety(fixture).await;
    type Wanted = fn(&StoredMessage, &StoredMessage) -> bool;
    let any = Selection::all;
    let noted_of_b = any().aggregate(&aggregate("b")).event_type("probe.noted");
    let mut cases: Vec<(Selection, Wanted)> = vec![
        (any().aggregate_type("probe"), |_, _| true),
        (any().aggregate_type("other"), |_, _| false),
        (any().event_type("probe.observed"), |m, _| {
            m.event_type == "probe.observed"
        }),
        (noted_of_b, |m, _| m.aggregate.id == "b" && m.sequence.is_some()),
    ];
    let general = cases.len();
    for one in &all {
        cases.push((Selection::id(one.id), |m, one| m.id == one.id));
        cases.push((any().status(one.status), |m, one| m.status == one.status));
        cases.push((any().aggregate(&one.aggregate), |m, one| {
            m.aggregate == one.aggregate
        }));
        cases.push((any().after(one.row_id), |m, one| m.row_id > one.row_id));
        cases.push((any().recorded_from(one.created_at), |m, one| {
            m.created_at >= one.created_at
        }));
        cases.push((any().recorded_until(one.created_at), |m, one| {
            m.created_at < one.created_at
        }));
    }
    for (case, (selection, is_wanted)) in cases.into_iter().enumerate() {
        let one = &all[case.saturating_sub(general) / 6];
        let expected: Vec<_> = all
            .iter()
            .filter(|message| is_wanted(message, one))
            .cloned()
            .collect();
        assert_eq!(list(fixture, &selection).await, expected, "{selection:?}");
    }
}

/// The list of blocked aggregates begins with halted aggregates. Other aggregates follow by the end
/// of their block. A query by name finds each aggregate.
pub async fn blocked_aggregates_are_listed_halted_first<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c", "d"]).await;
    settled(fixture, &leases, &only(&rows, "a"), hindered(LONG)).await;
    settled(fixture, &leases, &only(&rows, "b"), hindered(Duration::ZERO)).await;
    settled(fixture, &leases, &only(&rows, "c"), dead(true)).await;
    let listed = blocked(fixture).await;
    assert_eq!(
        ids(listed.iter().map(|blocked| &blocked.aggregate)),
        ["c", "b", "a"]
    );
    let by: Vec<_> = listed.iter().map(|blocked| blocked.halted_by).collect();
    assert_eq!(by, [Some(only(&rows, "c")[0].row_id), None, None]);
    assert_eq!(listed[0].blocked_for, None);
    assert_eq!(listed[1].blocked_for, Some(Duration::ZERO));
    assert!(is_left_of(LONG, listed[2].blocked_for));
    assert_eq!(store(fixture).blocked(limit(2)).await.len(), 2);
    for blocked in &listed {
        let found = store(fixture).block(&blocked.aggregate).await;
        let found = found.expect("the aggregate is blocked");
        assert_eq!(
            (found.aggregate, found.halted_by),
            (blocked.aggregate.clone(), blocked.halted_by)
        );
    }
    assert_eq!(store(fixture).block(&aggregate("d")).await, None);
}

/// `resume` ends the back-off of one aggregate.
pub async fn resume_ends_a_block<F: StoreFixture>(fixture: &F) {
    let leases = block_each(fixture, &["a", "b", "a"], LONG).await;
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    assert!(store(fixture).resume(&aggregate("a")).await);
    assert_eq!(keys(&fetch_waiting(fixture, &leases).await), "a1 a2");
    assert!(!store(fixture).resume(&aggregate("x")).await, "x is not blocked");
}

/// `resume` does not end a halt.
pub async fn resume_does_not_end_a_halt<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a", "a"], Duration::ZERO).await;
    let rows = first(&fetch_waiting(fixture, &leases).await, "a");
    settled(fixture, &leases, &rows, dead(true)).await;
    assert!(!store(fixture).resume(&aggregate("a")).await);
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    assert_eq!(store(fixture).backlog().await.halted_aggregates, 1);
}
