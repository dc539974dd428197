//! Several producers of one aggregate, and a producer that reuses numbers.

use super::*;

fn later_event(sequence: u64) -> NumberedEvent {
    NumberedEvent {
        sequence,
        id: Uuid::from_u128(1_000 + u128::from(sequence)),
        recorded_at: 1_000 + sequence.cast_signed(),
    }
}

impl Lane<'_> {
    async fn claim_event(&self, event: NumberedEvent) -> Outcome {
        let tx = self.begin().await;
        let turn = self.of_event(event).claim(&tx, Wait).await.unwrap();
        tx.commit().await.unwrap();
        turn
    }
}

async fn services_number_a_shared_aggregate_separately(db: TestDb) {
    let shop = Lane::new(&db);
    let store = Lane {
        source: "store",
        ..Lane::new(&db)
    };
    shop.claim_all([1, 2, 3]).await;
    assert_eq!(store.claim_event(later_event(1)).await, Claimed);
    store.fail(5).await;
    shop.claim_all([4, 5, 6]).await;
    assert_eq!(store.claim_event(later_event(2)).await, Claimed);
    let order = Aggregate::new("order", "1");
    let asked = [(&order, "shop"), (&order, "store"), (&order, "elsewhere")];
    let found = shop.sql.last_sequences(&db.db, "books", asked).await.unwrap();
    assert_eq!(found.get(&(order.clone(), "shop")), Some(&6));
    assert_eq!(found.get(&(order.clone(), "store")), Some(&2));
    assert_eq!(found.len(), 2);
    db.close().await;
}

/// The database was restored after number 7, to a time before number 4.
async fn reused_number_of_restored_producer_is_no_duplicate(db: TestDb) {
    let lane = Lane::new(&db);
    lane.claim_all(1..=7).await;
    for sequence in 4..=7 {
        assert_eq!(lane.claim_event(later_event(sequence)).await, Taken, "{sequence}");
        assert_eq!(
            lane.claim(sequence, Wait).await,
            Duplicate,
            "a copy of {sequence}"
        );
    }
    let again = lane.of_event(later_event(5));
    let tx = lane.begin().await;
    assert!(again.pass(&tx).await.unwrap());
    assert_eq!(again.claim_again(&tx, true, Wait).await.unwrap(), Claimed);
    tx.commit().await.unwrap();
    assert!(!lane.pass(5).await, "the first one took effect");
    assert_eq!(lane.claim_event(later_event(8)).await, Claimed);
    assert_eq!(lane.claim(7, Wait).await, Duplicate);
    db.close().await;
}

async fn another_event_with_the_last_number_is_no_duplicate(db: TestDb) {
    let lane = Lane::new(&db);
    lane.claim_all([1, 2]).await;
    let other = NumberedEvent {
        recorded_at: 0,
        ..later_event(2)
    };
    assert_eq!(lane.claim_event(other).await, Taken);
    assert_eq!(lane.claim(2, Wait).await, Duplicate);
    db.close().await;
}

async fn copies_are_duplicates_after_clock_goes_back(db: TestDb) {
    let lane = Lane::new(&db);
    let ahead = NumberedEvent {
        recorded_at: 500,
        ..event(1)
    };
    assert_eq!(lane.claim_event(ahead).await, Claimed);
    lane.claim_all([2, 3]).await;
    assert_eq!(lane.claim_event(ahead).await, Duplicate);
    assert_eq!(lane.row().await.unwrap().last_recorded_at, 500);
    db.close().await;
}

on_every_database!(
    services_number_a_shared_aggregate_separately,
    reused_number_of_restored_producer_is_no_duplicate,
    another_event_with_the_last_number_is_no_duplicate,
    copies_are_duplicates_after_clock_goes_back,
);
