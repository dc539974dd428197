//! Plants each mistake in correct evidence, and checks the number that must show it.

use outbox::testing::LogEntry;
use outbox_core::{Message, NewMessage};

use super::*;
use crate::events::{OrderPlaced, OrderShipped, ShipmentDispatched};
use crate::generate::generate;
use crate::notices::Notice;
use crate::order::Order;

/// The evidence of a correct run over three shipped orders.
fn good() -> (Evidence, Expected, Books) {
    let mut orders = generate(3);
    for order in &mut orders {
        order.shipped_date = Some("1996-08-01".parse().unwrap());
    }
    let mut evidence = Evidence {
        orders: 3,
        shipped: 3,
        deliveries: 12,
        ..Evidence::default()
    };
    for order in &orders {
        take_effect(&mut evidence, order);
    }
    let books = Books::of(&orders);
    evidence.books = books.clone();
    (evidence, Expected::of(&orders), books)
}

fn take_effect(evidence: &mut Evidence, order: &Order) {
    let (order_id, shipped_date) = (order.order_id, order.shipped_date.unwrap());
    let placed = publish(
        evidence,
        NewMessage::from_event(&OrderPlaced::of(order)).unwrap(),
        1,
    );
    let shipped = publish(
        evidence,
        NewMessage::from_event(&OrderShipped {
            order_id,
            shipped_date,
        })
        .unwrap(),
        2,
    );
    let dispatched = ShipmentDispatched {
        order_id,
        shipped_date,
    };
    let dispatched = publish(evidence, NewMessage::from_event(&dispatched).unwrap(), 1);
    for (part, id) in [
        (Part::Inventory, placed),
        (Part::Billing, placed),
        (Part::Shipping, shipped),
    ] {
        evidence.effects.entry(part).or_default().push(id);
    }
    let key = StableKey::new("notifications", dispatched.into()).as_uuid();
    evidence.notices.push(Notice {
        key,
        order_id,
        shipped_date,
    });
}

fn publish(evidence: &mut Evidence, message: NewMessage, sequence: u64) -> MessageId {
    let message = message.into_message(Some(sequence), time::OffsetDateTime::UNIX_EPOCH);
    let id = message.id;
    evidence.committed.push(Committed {
        id,
        aggregate: message.aggregate.clone(),
        sequence: message.sequence,
        event_type: message.event_type.clone(),
        payload: message.payload.to_vec(),
        outbox_dead: false,
    });
    evidence.stream.push(entry(message));
    id
}

fn entry(message: Message) -> LogEntry {
    LogEntry {
        stream_sequence: 1,
        subject: "events".to_owned(),
        message: Ok(message),
    }
}

/// Plants a mistake and returns the ledger, which must not balance.
#[track_caller]
fn planted(mistake: impl FnOnce(&mut Evidence)) -> Ledger {
    let (mut evidence, expected, books) = good();
    mistake(&mut evidence);
    let ledger = Ledger::of(&evidence, expected, &books, 0);
    assert!(!ledger.balances(), "{ledger}");
    ledger
}

#[test]
fn good_evidence_balances_also_with_copies_on_the_stream() {
    let (mut evidence, expected, books) = good();
    evidence.stream.extend(evidence.stream.clone());
    let ledger = Ledger::of(&evidence, expected, &books, 0);
    assert!(ledger.balances(), "{ledger}");
    assert_eq!(
        (
            ledger.messages_committed,
            ledger.messages_on_stream,
            ledger.stream_duplicates
        ),
        (9, 9, 9)
    );
    assert_eq!(ledger.effects.values().sum::<u64>(), 12);
}

#[test]
fn losses_show() {
    assert_eq!(planted(|evidence| drop(evidence.stream.pop())).lost, 1);
    assert_eq!(
        planted(|evidence| assert!(evidence.notices.pop().is_some())).lost,
        1
    );
    assert_eq!(
        planted(|evidence| evidence.effects.get_mut(&Part::Billing).unwrap().clear()).lost,
        3
    );
    let outbox_dead = planted(|evidence| {
        evidence.stream.pop();
        evidence.committed.last_mut().unwrap().outbox_dead = true;
    });
    assert_eq!((outbox_dead.lost, outbox_dead.outbox_dead), (0, 1));
}

#[test]
fn ghosts_show() {
    // The third order was rolled back, but its messages were published and took effect all the same.
    let ghost = planted(|evidence| evidence.committed.truncate(6));
    assert_eq!(ghost.ghosts, 3 + 4);
    // The committed payload differs from the published one.
    let changed = planted(|evidence| evidence.committed[0].payload.push(b' '));
    assert_eq!((changed.ghosts, changed.lost), (1, 1));
    let foreign = planted(|evidence| {
        evidence.stream.push(LogEntry::decode(
            99,
            "events".to_owned(),
            &[],
            b"x".as_slice().into(),
        ));
    });
    assert_eq!(foreign.ghosts, 1);
}

#[test]
fn double_effects_show() {
    let double = planted(|evidence| {
        let effects = evidence.effects.get_mut(&Part::Inventory).unwrap();
        effects.push(effects[0]);
        effects.push(effects[0]);
        evidence.notices.push(evidence.notices[0].clone());
    });
    assert_eq!(double.double_effects, 3);
    // An unstable key looks like the same notice under another key.
    let unstable = planted(|evidence| {
        let notice = Notice {
            key: uuid::Uuid::now_v7(),
            ..evidence.notices[0].clone()
        };
        evidence.notices.push(notice);
    });
    assert_eq!((unstable.double_effects, unstable.ghosts), (0, 1));
}

#[test]
fn inversions_show() {
    assert_eq!(planted(|evidence| evidence.stream.swap(0, 1)).inversions, 2);
    // A copy of the second message before the first is an inversion, whatever follows.
    assert_eq!(
        planted(|evidence| evidence.stream.insert(0, evidence.stream[1].clone())).inversions,
        2
    );
}

#[test]
fn books_that_differ_show() {
    planted(|evidence| *evidence.books.units.values_mut().next().unwrap() += 1);
    planted(|evidence| *evidence.books.amounts_cents.values_mut().next().unwrap() -= 1);
    planted(|evidence| drop(evidence.books.shipments.pop_first()));
}

#[test]
fn less_than_the_input_shows() {
    planted(|evidence| evidence.orders -= 1);
    planted(|evidence| evidence.dead_letters = 1);
    let (_, expected, books) = good();
    assert!(!Ledger::of(&Evidence::default(), expected, &books, 0).balances());
}
