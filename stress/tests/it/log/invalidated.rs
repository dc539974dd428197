//! A slot that the server invalidates for retaining too much WAL (`max_slot_wal_keep_size`).

use sea_orm::ConnectionTrait as _;

use super::{Place, run_relay, until};

/// The server may keep two WAL segments of 16 MB for a slot. Smaller segments require another
/// `initdb`.
const SETTINGS: [&str; 3] = [
    "max_slot_wal_keep_size=32MB",
    "min_wal_size=32MB",
    "max_wal_size=64MB",
];

impl Place {
    async fn is_lost(&self) -> bool {
        self.log().status().await.unwrap().is_lost
    }

    async fn lose_slot(&self) {
        until("the server does not release the slot", async || {
            self.write(&["1", "2", "3"], 2).await;
            self.db
                .execute_unprepared(
                    "SELECT pg_logical_emit_message(false, 'other', repeat('x', 1000)), pg_switch_wal()",
                )
                .await
                .unwrap();
            self.execute("CHECKPOINT").await;
            self.is_lost().await
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_invalidated_without_a_relay_is_repaired_from_the_table() {
    let Some(place) = Place::private(&SETTINGS).await else {
        return;
    };
    for _ in 0..3 {
        place
            .run(async {
                place.write(&["1", "2", "3"], 20).await;
                place.published().await;
            })
            .await;
        place.lose_slot().await;
        let published = place.rows(1).await;
        place
            .run(async {
                place.write(&["1", "2", "3"], 20).await;
                place.published().await;
                until("the table publishes nothing", async || {
                    place.rows(1).await > published
                })
                .await;
            })
            .await;
        assert!(!place.is_lost().await);
    }
    place.assert_balanced().await;
    place.close().await;
}

/// Stalls the relay's connection, so the server ends the session and invalidates the slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_invalidated_under_its_reader_loses_no_message() {
    let Some(place) = Place::private(&SETTINGS).await else {
        return;
    };
    let proxy = super::proxy::Proxy::in_front_of(&place.url).await;
    let relay = place.relay_of(place.log_at(&proxy.url, &place.db), &place.db);
    run_relay(&relay, async {
        place.write(&["1", "2", "3"], 20).await;
        place.published().await;
        for _ in 0..3 {
            proxy.hold_back();
            place.lose_slot().await;
            proxy.pass_on();
            place.write(&["1", "2", "3"], 20).await;
            place.published().await;
        }
    })
    .await;
    assert!(!place.is_lost().await);
    place.assert_balanced().await;
    place.close().await;
}
