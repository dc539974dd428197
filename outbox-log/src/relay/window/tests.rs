//! Tests of the messages in memory, and of the position that may be stored.

use std::time::Duration;

use outbox_core::FetchedRow;
use time::OffsetDateTime;

use super::*;

fn message(row_id: i64) -> LoggedMessage {
    LoggedMessage {
        id: id(row_id),
        row: FetchedRow {
            row_id,
            id: Some(id(row_id)),
            partition: 0,
            aggregate: Aggregate::new("order", "1"),
            sequenced: true,
            attempts: 0,
            failures: 0,
            waited: false,
            age: Duration::ZERO,
            message: Err("not needed".to_owned().into()),
        },
        transaction: 0,
        passed_from: Position(0),
        created_at: OffsetDateTime::UNIX_EPOCH,
        available_at: None,
    }
}

fn id(row_id: i64) -> MessageId {
    MessageId::from(uuid::Uuid::from_u128(row_id as u128))
}

/// A window of `transactions`. The first transaction ends at position 10, the second at 20, and so
/// on.
fn window(transactions: &[&[i64]]) -> Window {
    let mut window = Window::default();
    for (n, row_ids) in transactions.iter().enumerate() {
        row_ids.iter().for_each(|row_id| window.push(message(*row_id)));
        window.commit(Position(10 * (n as u64 + 1)));
    }
    window
}

fn held(window: &Window) -> Vec<i64> {
    window.undecided().map(|held| held.message.row.row_id).collect()
}

#[test]
fn position_passes_only_decided_transactions() {
    let mut window = window(&[&[1, 2], &[3], &[4]]);
    assert_eq!(window.decided(), Position(0));
    for (row_id, position) in [(3, 0), (2, 0), (1, 20), (4, 30)] {
        window.published(id(row_id));
        assert_eq!(window.decided(), Position(position), "{row_id}");
    }
    assert_eq!((window.len(), window.bytes()), (0, 0));
}

#[test]
fn a_transaction_without_an_end_is_not_passed() {
    let mut window = window(&[&[1]]);
    window.push(message(2));
    window.published(id(1));
    window.published(id(2));
    window.idle(Position(15));
    assert_eq!(window.decided(), Position(10));
    window.push(message(3));
    window.commit(Position(20));
    assert_eq!(window.decided(), Position(10), "message 3 is undecided");
    window.published(id(3));
    assert_eq!(window.decided(), Position(20));
}

#[test]
fn idle_log_position_stays_before_undecided_messages() {
    let mut window = window(&[&[1]]);
    window.idle(Position(50));
    assert_eq!((window.decided(), window.read_to()), (Position(0), Position(50)));
    window.published(id(1));
    assert_eq!(window.decided(), Position(50));
    window.commit(Position(60));
    assert_eq!(window.decided(), Position(60));
}

/// The flag must stay set, so that the next checkpoint stores the position. Otherwise a crash would
/// repeat messages.
#[test]
fn decisions_during_a_store_are_news() {
    let mut window = window(&[&[1], &[2]]);
    window.published(id(1));
    let stored = window.decided();
    window.published(id(2));
    window.stored();
    assert!(window.has_news(stored));
    assert!(!window.has_news(window.decided()));
    window.idle(Position(50));
    assert!(
        !window.has_news(Position(20)),
        "the transaction holds no messages"
    );
}

#[test]
fn verdict_on_an_unknown_message_changes_nothing() {
    let mut window = window(&[&[1], &[2]]);
    window.published(id(7));
    window.published(id(2));
    window.published(id(2));
    assert_eq!((window.decided(), held(&window)), (Position(0), vec![1]));
}

#[test]
fn adopted_messages_are_decided() {
    let mut window = Window::default();
    window.begin(Position(15));
    for row_id in [1, 2] {
        window.push(message(row_id));
    }
    window.commit(Position(10));
    window.push(message(3));
    window.commit(Position(20));
    window.push(message(4));
    window.commit(Position(30));
    let doubtful: Vec<_> = window
        .undecided()
        .filter(|held| held.is_doubtful)
        .map(|held| held.message.logged())
        .collect();
    assert_eq!(
        doubtful.iter().map(|logged| logged.id).collect::<Vec<_>>(),
        [1, 2, 3].map(id)
    );
    window.told(&doubtful, &HashSet::from([id(2)]), &HashSet::from([id(3)]));
    assert_eq!(held(&window), [2, 3, 4]);
    assert!(!window.get(id(2)).unwrap().is_doubtful);
    assert!(window.get(id(3)).unwrap().is_doubtful, "the owner is unknown");
    window.told(&doubtful[2..], &HashSet::new(), &HashSet::new());
    assert_eq!(held(&window), [2, 4]);
}

/// If an earlier message stayed in the log, a later pending message could be published before it.
#[test]
fn messages_before_an_adopted_message_are_adopted() {
    let mut window = Window::default();
    for (row_id, aggregate) in [(1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, "b")] {
        let mut message = message(row_id);
        message.row.aggregate = Aggregate::new("order", aggregate);
        window.push(message);
    }
    let mut adopted = |ids: &[i64]| -> Vec<MessageId> {
        let ids: Vec<MessageId> = ids.iter().map(|row_id| id(*row_id)).collect();
        let logged = window.doubt_with_earlier(&ids).into_iter();
        logged.map(|logged| logged.id).collect()
    };
    assert!(adopted(&[9]).is_empty());
    assert_eq!(adopted(&[3]), [1, 3].map(id));
    assert_eq!(adopted(&[5, 1]), [1, 2, 5].map(id));
    assert!(window.get(id(1)).unwrap().is_doubtful && !window.get(id(4)).unwrap().is_doubtful);
}

#[test]
fn decided_messages_are_known_after_an_interruption() {
    let mut window = window(&[&[1], &[2], &[3]]);
    window.published(id(2));
    window.stored();
    window.published(id(3));
    for _ in 0..2 {
        window.begin(Position(0));
        for row_id in [1, 2, 3, 4] {
            window.push(message(row_id));
            window.commit(Position(row_id as u64 * 10));
        }
        assert_eq!(held(&window), [1, 4]);
    }
    window.published(id(1));
    assert_eq!(window.decided(), Position(30));
}

/// A reading that reads the transaction's end again can drop the ids of its published messages.
#[test]
fn published_part_of_an_open_transaction_stays_known() {
    let mut window = window(&[&[1]]);
    window.published(id(1));
    window.push(message(2));
    window.published(id(2));
    for reading in 0..3 {
        window.begin(Position(0));
        (reading..3).for_each(|_| window.stored());
        window.idle(Position(5));
        window.push(message(1));
        window.commit(Position(10));
        window.idle(Position(15));
        window.push(message(2));
        assert_eq!(held(&window), [0_i64; 0], "reading {reading}");
    }
    window.commit(Position(20));
    assert!(window.known.ids.is_empty());
    assert_eq!(window.decided(), Position(20));
}

/// A database failover may lose the change from logged to pending, so the log returns the message
/// again.
#[test]
fn adopted_messages_are_doubtful_after_an_interruption() {
    let mut window = window(&[&[1], &[2]]);
    window.adopted(id(1));
    window.published(id(2));
    window.begin(Position(20));
    for row_id in [1, 2] {
        window.push(message(row_id));
        window.commit(Position(row_id as u64 * 10));
    }
    assert_eq!(held(&window), [1]);
    assert!(window.get(id(1)).unwrap().is_doubtful);
    assert_eq!(window.decided(), Position(0));
}

#[test]
fn messages_with_the_same_row_id_are_decided_separately() {
    let mut window = Window::default();
    for n in [1, 2] {
        let mut message = message(7);
        message.id = id(n);
        window.push(message);
        window.commit(Position(10 * n as u64));
    }
    window.published(id(2));
    assert_eq!((window.decided(), window.len()), (Position(0), 1));
    window.published(id(1));
    assert_eq!((window.decided(), window.len()), (Position(20), 0));
}
