//! Tests of strategy *sequence*, on every database.

use std::time::Duration;

use outbox_sea_orm::TableNames;
use sea_orm::{DatabaseTransaction, DbBackend};
use uuid::Uuid;

use super::*;
use crate::tests::database::{TestDb, on_every_database};

mod producers;
mod races;

use Gaps::{Accept, Ignore, Wait};
use Outcome::{Claimed, Duplicate, Early, Late, Taken};

const DAYS: Duration = Duration::from_secs(3 * 24 * 3600);

struct Lane<'a> {
    db: &'a TestDb,
    sql: InboxSql,
    consumer: &'a str,
    aggregate: Aggregate,
    source: &'a str,
}

fn event(sequence: u64) -> NumberedEvent {
    NumberedEvent {
        sequence,
        id: Uuid::from_u128(sequence.into()),
        recorded_at: sequence.cast_signed(),
    }
}

impl<'a> Lane<'a> {
    fn new(db: &'a TestDb) -> Self {
        Self::of(db, "books", "1")
    }

    fn of(db: &'a TestDb, consumer: &'a str, aggregate: &str) -> Self {
        Self {
            db,
            sql: InboxSql::new(db.db.get_database_backend(), &TableNames::new(), DAYS),
            consumer,
            aggregate: Aggregate::new("order", aggregate),
            source: "shop",
        }
    }

    fn at(&self, sequence: u64) -> Place<'_> {
        self.of_event(event(sequence))
    }

    fn of_event(&self, event: NumberedEvent) -> Place<'_> {
        Place {
            sql: &self.sql,
            consumer: self.consumer,
            aggregate: &self.aggregate,
            source: self.source,
            event,
        }
    }

    async fn begin(&self) -> DatabaseTransaction {
        self.db.database.begin().await.unwrap()
    }

    async fn claim(&self, sequence: u64, gaps: Gaps) -> Outcome {
        let tx = self.begin().await;
        let turn = self.at(sequence).claim(&tx, gaps).await.unwrap();
        let holds = self.at(sequence).still_holds(&tx).await.unwrap();
        assert!(holds || turn != Claimed, "{sequence} is ours and not held");
        tx.commit().await.unwrap();
        turn
    }

    async fn claim_all(&self, sequences: impl IntoIterator<Item = u64>) {
        for sequence in sequences {
            assert_eq!(self.claim(sequence, Wait).await, Claimed, "{sequence}");
        }
    }

    async fn claim_again(&self, sequence: u64) -> Outcome {
        self.claim_again_of(sequence, true).await
    }

    async fn claim_again_of(&self, sequence: u64, was_dead: bool) -> Outcome {
        let tx = self.begin().await;
        let place = self.at(sequence);
        let turn = place.claim_again(&tx, was_dead, Wait).await.unwrap();
        tx.commit().await.unwrap();
        turn
    }

    async fn fail(&self, sequence: u64) {
        let tx = self.begin().await;
        self.at(sequence).note_failing(&tx).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn pass(&self, sequence: u64) -> bool {
        let tx = self.begin().await;
        let passed = self.at(sequence).pass(&tx).await.unwrap();
        tx.commit().await.unwrap();
        passed
    }

    async fn row(&self) -> Option<SequenceState> {
        self.sql
            .sequence_state(&self.db.db, &self.at(1), false)
            .await
            .unwrap()
    }
}

fn gap(expected: u64) -> Outcome {
    Early {
        expected,
        failing: false,
    }
}

fn behind(expected: u64) -> Outcome {
    Early {
        expected,
        failing: true,
    }
}

async fn numbers_are_applied_once_in_order(db: TestDb) {
    let lane = Lane::new(&db);
    for sequence in 1..=5 {
        assert_eq!(lane.claim(sequence, Wait).await, Claimed);
        assert_eq!(lane.claim(sequence, Wait).await, Duplicate, "duplicate");
        assert_eq!(lane.claim(1, Accept).await, Duplicate, "older");
    }
    assert_eq!(lane.row().await.unwrap().last, 5);
    db.close().await;
}

async fn message_waits_for_gap(db: TestDb) {
    let lane = Lane::new(&db);
    assert_eq!(lane.claim(2, Wait).await, gap(1), "nothing was seen yet");
    assert_eq!(lane.row().await, None, "waiting writes nothing");
    lane.claim_all([1]).await;
    assert_eq!(lane.claim(4, Wait).await, gap(2));
    assert_eq!(lane.claim(3, Wait).await, gap(2));
    lane.claim_all([2, 3, 4]).await;
    db.close().await;
}

async fn accepted_gap_makes_missing_messages_late(db: TestDb) {
    let lane = Lane::new(&db);
    lane.claim_all([1, 2]).await;
    assert_eq!(lane.claim(6, Accept).await, Claimed);
    lane.claim_all([7]).await;
    for missing in 3..=5 {
        assert_eq!(lane.claim(missing, Wait).await, Late);
        assert_eq!(lane.claim(missing, Accept).await, Late);
        let tx = lane.begin().await;
        assert!(!lane.at(missing).still_holds(&tx).await.unwrap());
        tx.rollback().await.unwrap();
    }
    assert_eq!(lane.claim(2, Wait).await, Duplicate);
    assert_eq!(lane.claim_again(4).await, Claimed);
    assert_eq!(lane.claim(4, Wait).await, Duplicate);
    assert_eq!(lane.claim(3, Wait).await, Late);
    assert_eq!(lane.claim(5, Wait).await, Late);
    assert_eq!(lane.claim_again(3).await, Claimed);
    assert_eq!(lane.claim_again_of(5, false).await, Claimed, "missing");
    assert_eq!(lane.row().await.unwrap().missing, Default::default());
    db.close().await;
}

async fn normal_gaps_leave_no_trace(db: TestDb) {
    let lane = Lane::new(&db);
    for sequence in [3, 4, 9] {
        assert_eq!(lane.claim(sequence, Ignore).await, Claimed);
        assert_eq!(lane.claim(sequence, Ignore).await, Duplicate);
    }
    assert_eq!(lane.claim(5, Ignore).await, Duplicate);
    let expected = SequenceState {
        last: 9,
        last_event: Some(event(9).id),
        last_recorded_at: 9,
        ..SequenceState::default()
    };
    assert_eq!(lane.row().await, Some(expected));
    lane.fail(12).await;
    assert_eq!(lane.claim(14, Ignore).await, behind(12));
    assert_eq!(
        lane.claim(11, Ignore).await,
        Claimed,
        "it comes before the failed one"
    );
    assert_eq!(lane.claim(12, Ignore).await, Claimed);
    assert_eq!(lane.claim(14, Ignore).await, Claimed);
    db.close().await;
}

async fn a_failing_message_is_no_gap(db: TestDb) {
    let lane = Lane::new(&db);
    lane.fail(1).await;
    assert_eq!(lane.claim(2, Wait).await, behind(1));
    assert_eq!(
        lane.claim(2, Accept).await,
        behind(1),
        "no message passes the failed message"
    );
    lane.claim_all([1]).await;
    assert_eq!(lane.row().await.unwrap().failing, None);
    lane.claim_all([2]).await;
    lane.fail(5).await;
    lane.fail(4).await;
    lane.fail(6).await;
    assert_eq!(lane.row().await.unwrap().failing, Some(4));
    assert_eq!(lane.claim(7, Wait).await, behind(3));
    assert_eq!(lane.claim(4, Wait).await, gap(3));
    lane.claim_all([3, 4]).await;
    assert_eq!(lane.row().await.unwrap().failing, None);
    lane.fail(2).await;
    assert_eq!(lane.row().await.unwrap().failing, None);
    db.close().await;
}

async fn failing_mark_without_redelivery_expires(db: TestDb) {
    let lane = Lane::new(&db);
    lane.fail(1).await;
    let yesterday = match db.db.get_database_backend() {
        DbBackend::Postgres => "updated_at - interval '25 hours'",
        DbBackend::MySql => "TIMESTAMPADD(HOUR, -25, updated_at)",
        _ => "updated_at - 25 * 3600000000",
    };
    let age = format!("UPDATE inbox_sequences SET updated_at = {yesterday}");
    db.db.execute_unprepared(&age).await.unwrap();
    assert_eq!(lane.claim(3, Wait).await, gap(1));
    lane.fail(2).await;
    assert_eq!(
        lane.claim(3, Wait).await,
        behind(1),
        "a fresh mark replaces the old mark"
    );
    assert_eq!(lane.row().await.unwrap().failing, Some(2));
    db.db.execute_unprepared(&age).await.unwrap();
    assert_eq!(lane.claim(3, Accept).await, Claimed);
    db.close().await;
}

async fn a_dead_letter_is_passed(db: TestDb) {
    let lane = Lane::new(&db);
    lane.fail(1).await;
    lane.pass(1).await;
    assert_eq!(lane.row().await.unwrap().failing, None);
    assert_eq!(lane.claim(1, Wait).await, Duplicate);
    lane.claim_all([2]).await;
    lane.pass(5).await;
    assert_eq!(lane.claim(4, Wait).await, Late);
    lane.claim_all([6]).await;
    assert!(lane.pass(3).await, "a missing message had no effect");
    assert!(!lane.pass(6).await, "it took effect");
    assert_eq!(lane.row().await.unwrap().last, 6, "passing again changes nothing");
    assert_eq!(lane.claim_again(5).await, Claimed);
    assert_eq!(lane.claim_again_of(6, false).await, Duplicate, "it took effect");
    assert_eq!(lane.claim_again(9).await, gap(7));
    assert_eq!(lane.claim_again(7).await, Claimed);
    db.close().await;
}

async fn missing_ranges_are_bounded_without_loss(db: TestDb) {
    let lane = Lane::new(&db);
    for sequence in (2..=128).step_by(2) {
        assert_eq!(lane.claim(sequence, Accept).await, Claimed);
    }
    assert_eq!(
        lane.claim(130, Accept).await,
        gap(129),
        "too many gaps for one more"
    );
    lane.pass(130).await;
    assert_eq!(lane.row().await.unwrap().missing.len(), MISSING_MAX);
    for missing in (1..130).step_by(2) {
        assert_eq!(lane.claim(missing, Wait).await, Late, "{missing}");
    }
    lane.claim_all([131]).await;
    db.close().await;
}

async fn names_and_ids_are_compared_byte_by_byte(db: TestDb) {
    let long = "ü".repeat(255);
    let longer = format!("{}v", "ü".repeat(254));
    let ids = [
        "A", "a", "a ", " a", "ä", "a\u{308}", "%", "'", "", &long, &longer,
    ];
    for consumer in ["books", "Books"] {
        for id in ids {
            let lane = Lane::of(&db, consumer, id);
            lane.claim_all([1, 2]).await;
            assert_eq!(lane.claim(2, Wait).await, Duplicate);
        }
    }
    let other_type = Lane {
        aggregate: Aggregate::new("Order", "A"),
        ..Lane::new(&db)
    };
    other_type.claim_all([1]).await;
    db.close().await;
}

on_every_database!(
    numbers_are_applied_once_in_order,
    message_waits_for_gap,
    accepted_gap_makes_missing_messages_late,
    normal_gaps_leave_no_trace,
    a_failing_message_is_no_gap,
    failing_mark_without_redelivery_expires,
    a_dead_letter_is_passed,
    missing_ranges_are_bounded_without_loss,
    names_and_ids_are_compared_byte_by_byte,
);
