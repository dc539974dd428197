//! Broken sessions, and slots that are dropped, replaced, or advanced by another program.

use outbox_core::shutdown::CancellationToken;
use outbox_testing::eventually;
use sea_orm::ConnectionTrait as _;

use crate::support::{Place, init, sleep};

crate::on_a_log! {
    broken_sessions_lose_nothing,
    slot_dropped_under_load_is_recreated_without_loss,
    slot_advanced_by_another_program_is_not_trusted,
    relay_dropped_at_any_moment_loses_nothing,
    repeated_init_after_a_lost_slot_hides_nothing,
    messages_outside_the_publication_come_from_the_table,
    recreated_publication_does_not_stop_the_log,
    a_position_of_another_system_is_not_trusted,
    publication_recreated_with_a_backlog_loses_nothing,
    row_too_large_for_the_log_is_left_to_the_table,
}

async fn broken_sessions_lose_nothing(place: &Place) {
    place
        .run(async {
            for _ in 0..10 {
                place.write(0..10, 3).await;
                place.end_session().await;
            }
            place.published().await;
        })
        .await;
    place.assert_balanced();
}

async fn slot_dropped_under_load_is_recreated_without_loss(place: &Place) {
    let drop_slot = format!(
        "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}_log'",
        place.name
    );
    // The drop of the slot fails while the slot is in use.
    let is_dropped = async || {
        place.end_session().await;
        let dropped = place.db.execute_unprepared(&drop_slot).await;
        dropped.is_ok_and(|dropped| dropped.rows_affected() == 1)
    };
    place
        .run(async {
            for _ in 0..4 {
                place.write(0..10, 5).await;
                while !is_dropped().await {
                    sleep(20).await;
                }
                place.write(0..10, 5).await;
            }
            place.published().await;
        })
        .await;
    place.assert_balanced();
}

/// Simulates restoring an old backup next to a live slot: the server would not return the missing
/// messages.
async fn slot_advanced_by_another_program_is_not_trusted(place: &Place) {
    place.publish_from_the_log().await;
    place.write(0..5, 10).await;
    let moved = format!(
        "SELECT count(*) FROM pg_replication_slot_advance('{}_log', pg_current_wal_lsn())",
        place.name
    );
    while place.log().status().await.unwrap().is_read {
        sleep(10).await;
    }
    place.number(&moved).await;
    place.run(place.published()).await;
    assert!(place.rows(1).await >= 50, "the table has published them");
    place.assert_balanced();
}

async fn relay_dropped_at_any_moment_loses_nothing(place: &Place) {
    for round in 0..12 {
        place.write(0..10, 3).await;
        let relay = place.relay();
        let run = relay.run(Default::default());
        let ended = tokio::time::timeout(std::time::Duration::from_millis(40 * round), run).await;
        assert!(ended.is_err());
        sleep(5).await;
    }
    place.run(place.published()).await;
    place.assert_balanced();
}

async fn repeated_init_after_a_lost_slot_hides_nothing(place: &Place) {
    place.write(0..5, 3).await;
    place.drop_slot().await;
    init(&place.log()).await;
    place.write(0..5, 3).await;
    place.run(place.published()).await;
    place.assert_balanced();
}

async fn messages_outside_the_publication_come_from_the_table(place: &Place) {
    let alter = async |how: &str| {
        let sql = format!("ALTER PUBLICATION {}_log {how}", place.name);
        place.execute(&sql).await;
    };
    place
        .run(async {
            for (leave_out, take_back) in [
                ("DROP TABLE outbox_messages", "ADD TABLE outbox_messages"),
                ("SET (publish = 'truncate')", "SET (publish = 'insert')"),
            ] {
                place.write(0..5, 2).await;
                place.published().await;
                alter(leave_out).await;
                place.write(0..5, 2).await;
                alter(take_back).await;
                place.write(0..5, 2).await;
            }
            place.published().await;
        })
        .await;
    assert!(place.rows(1).await >= 20, "the table has published them");
    place.assert_balanced();
}

async fn recreated_publication_does_not_stop_the_log(place: &Place) {
    place
        .run(async {
            place.write(0..5, 2).await;
            place.published().await;
            place
                .execute(&format!("DROP PUBLICATION {}_log", place.name))
                .await;
            place.write(0..5, 2).await;
            sleep(500).await;
            init(&place.log()).await;
            place.write(0..5, 2).await;
            place.published().await;
        })
        .await;
    assert!(place.rows(1).await >= 10, "the table has published them");
    place.assert_balanced();
}

/// Simulates restoring a base backup on another system: its slots look the same.
async fn a_position_of_another_system_is_not_trusted(place: &Place) {
    place.publish_from_the_log().await;
    place.write(0..5, 2).await;
    place
        .execute("UPDATE outbox_log SET system_id = system_id + 1")
        .await;
    place
        .run(async {
            place.published().await;
            place.write(0..5, 2).await;
            place.published().await;
        })
        .await;
    assert!(place.rows(1).await >= 10, "the table has published them");
    let here = "SELECT count(*) FROM outbox_log WHERE system_id = (SELECT system_identifier FROM pg_control_system())";
    assert_eq!(
        place.number(here).await,
        1,
        "the position has the id of its server"
    );
    place.assert_balanced();
}

impl Place {
    async fn publish_from_the_log(&self) {
        self.run(async {
            self.write(0..5, 2).await;
            self.published().await;
        })
        .await;
    }

    async fn drop_publication(&self) {
        self.execute(&format!("DROP PUBLICATION {}_log", self.name)).await;
    }

    async fn create_publication(&self) {
        self.execute(&format!(
            "CREATE PUBLICATION {}_log FOR TABLE outbox_messages WITH (publish = 'insert', publish_via_partition_root = true)",
            self.name
        ))
        .await;
    }
}

/// A slot does not see a recreated publication: the server fails at each earlier message until an
/// operator acts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publication_without_the_table_is_reported() {
    for is_dropped in [false, true] {
        let Some(place) = Place::open().await else { return };
        let (relay, shutdown) = (place.relay(), CancellationToken::new());
        let alter = async |how: &str| {
            let sql = format!("ALTER PUBLICATION {}_log {how} TABLE outbox_messages", place.name);
            place.execute(&sql).await;
        };
        let scenario = async {
            place.write(0..5, 2).await;
            place.published().await;
            match is_dropped {
                true => place.drop_publication().await,
                false => alter("DROP").await,
            }
            place.write(0..5, 2).await;
            eventually("the reason", async || {
                let health = relay.health().now().to_string();
                health.contains("does not publish the inserts")
            })
            .await;
            match is_dropped {
                true => place.create_publication().await,
                false => alter("ADD").await,
            }
            place.write(0..5, 2).await;
            place.published().await;
            shutdown.cancel();
        };
        let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
        report.unwrap();
        assert!(place.rows(1).await >= 10, "the table has published them");
        place.close_balanced().await;
    }
}

async fn publication_recreated_with_a_backlog_loses_nothing(place: &Place) {
    place.write(0..5, 2).await;
    place.drop_publication().await;
    place.write(0..5, 2).await;
    place.create_publication().await;
    place.write(0..5, 2).await;
    place
        .run(async {
            place.published().await;
            place.write(0..5, 2).await;
            place.published().await;
        })
        .await;
    assert!(place.rows(1).await >= 30, "the table has published them");
    place.assert_balanced();
}

async fn row_too_large_for_the_log_is_left_to_the_table(place: &Place) {
    let insert = async |aggregate: &str, bytes: u32| {
        place
            .execute(&format!(
                "INSERT INTO outbox_messages (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, content_type, payload, headers) \
                 VALUES (gen_random_uuid(), 0, 'order', '{aggregate}', 1, 'order.placed', 1, 'application/json', decode(repeat('20', {bytes}), 'hex'), '{{}}')"
            ))
            .await;
    };
    place
        .run(async {
            place.write(0..5, 2).await;
            insert("large", 9_000_000).await;
            insert("huge", 70_000_000).await;
            place.write(0..5, 2).await;
            place.published().await;
            eventually("dead letters", async || place.rows(2).await == 2).await;
            let unread =
                "SELECT count(*) FROM outbox_messages WHERE last_error LIKE '%payload has 70000000 bytes%'";
            assert_eq!(place.number(unread).await, 1);
        })
        .await;
    place.assert_balanced();
}
