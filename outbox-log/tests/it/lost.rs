//! Sessions that break, and slots that are dropped, replaced, or moved by somebody else.

use outbox_core::shutdown::CancellationToken;
use outbox_testing::eventually;
use sea_orm::ConnectionTrait as _;

use crate::support::{Place, SOON, init, sleep};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_breaks_again_and_again_loses_nothing() {
    let Some(place) = Place::open().await else { return };
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
    place.close().await;
}

/// The messages of the table that the slot has not given are published from the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_dropped_under_load_is_made_anew_and_nothing_is_lost() {
    let Some(place) = Place::open().await else { return };
    let drop_slot = format!(
        "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}_log'",
        place.name
    );
    // Fails while the slot is in use, and drops nothing while the relay has not made it anew.
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
    place.close().await;
}

/// As after the restore of an old backup beside a living slot, or a program that reads the same slot: the server would not give what is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_somebody_moved_on_is_not_trusted() {
    let Some(place) = Place::open().await else { return };
    place.publish_from_the_log().await;
    place.write(0..5, 10).await;
    let moved = format!(
        "SELECT count(*) FROM pg_replication_slot_advance('{}_log', pg_current_wal_lsn())",
        place.name
    );
    // The server frees the slot a moment after its reader has ended.
    while place.log().status().await.unwrap().is_read {
        sleep(10).await;
    }
    place.number(&moved).await;
    place.run(place.published()).await;
    assert!(place.rows(1).await >= 50, "the table has published them");
    place.assert_balanced();
    place.close().await;
}

/// The end of a relay at any moment, as by SIGKILL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_dropped_at_any_moment_loses_nothing() {
    let Some(place) = Place::open().await else { return };
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
    place.close().await;
}

/// A deployment that sets the log up at each start must not hide what the lost slot had not given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_up_that_is_repeated_after_the_slot_was_lost_hides_nothing() {
    let Some(place) = Place::open().await else { return };
    place.write(0..5, 3).await;
    place
        .execute(&format!(
            "SELECT pg_catalog.pg_drop_replication_slot('{}_log')",
            place.name
        ))
        .await;
    init(&place.log()).await;
    place.write(0..5, 3).await;
    place.run(place.published()).await;
    place.assert_balanced();
    place.close().await;
}

/// The server does not give what was not published when it was written, and does not say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_the_publication_left_out_for_a_while_come_from_the_table() {
    let Some(place) = Place::open().await else { return };
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
    place.close().await;
}

/// PostgreSQL decodes what was written meanwhile as of a time at which the publication was not there, and fails at that again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_that_was_dropped_and_made_again_does_not_stop_the_log_for_ever() {
    let Some(place) = Place::open().await else { return };
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
    place.close().await;
}

/// Nothing can be read until somebody acts. The relay says so, and loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_not_published_any_more_is_a_reason_of_ill_health() {
    let Some(place) = Place::open().await else { return };
    let alter = async |how: &str| {
        let sql = format!("ALTER PUBLICATION {}_log {how} TABLE outbox_messages", place.name);
        place.execute(&sql).await;
    };
    let (relay, shutdown) = (place.relay(), CancellationToken::new());
    let says_so = async || {
        for _ in 0..300 {
            let health = format!("{:?}", relay.health().now());
            if health.contains("does not publish the inserts") {
                return true;
            }
            sleep(100).await;
        }
        false
    };
    let scenario = async {
        place.write(0..5, 2).await;
        place.published().await;
        alter("DROP").await;
        place.write(0..5, 2).await;
        let has_said_so = says_so().await;
        alter("ADD").await;
        place.published().await;
        shutdown.cancel();
        has_said_so
    };
    let (report, has_said_so) = tokio::join!(relay.run(shutdown.clone()), scenario);
    report.unwrap();
    assert!(
        has_said_so,
        "the relay's health does not tell why nothing is read"
    );
    place.assert_balanced();
    place.close().await;
}

/// As after the restore of a base backup as another system, whose slots look the same and say nothing of what is in this table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_of_another_system_is_not_trusted() {
    let Some(place) = Place::open().await else { return };
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
        "it is known where the position belongs"
    );
    place.assert_balanced();
    place.close().await;
}

impl Place {
    /// Runs a relay while some messages are written.
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

    /// As `init` makes it.
    async fn create_publication(&self) {
        self.execute(&format!(
            "CREATE PUBLICATION {}_log FOR TABLE outbox_messages WITH (publish = 'insert', publish_via_partition_root = true)",
            self.name
        ))
        .await;
    }
}

/// A slot does not see a publication that was made behind what it reads: the server fails at each message that was written before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_that_is_made_anew_too_late_loses_nothing() {
    let Some(place) = Place::open().await else { return };
    let (relay, shutdown) = (place.relay(), CancellationToken::new());
    let scenario = async {
        place.write(0..5, 2).await;
        place.published().await;
        place.drop_publication().await;
        place.write(0..5, 2).await;
        let named = async {
            while !relay
                .health()
                .now()
                .to_string()
                .contains("does not publish the inserts")
            {
                sleep(50).await;
            }
        };
        let is_named = tokio::time::timeout(SOON, named).await.is_ok();
        place.create_publication().await;
        place.write(0..5, 2).await;
        place.published().await;
        shutdown.cancel();
        is_named
    };
    let (report, is_named) = tokio::join!(relay.run(shutdown.clone()), scenario);
    report.unwrap();
    assert!(is_named, "the relay's health does not tell why nothing is read");
    assert!(place.rows(1).await >= 10, "the table has published them");
    place.assert_balanced();
    place.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_that_is_made_anew_behind_a_backlog_loses_nothing() {
    let Some(place) = Place::open().await else { return };
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
    place.close().await;
}

/// A writer may insert rows of any size. The client of the log takes no memory for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_too_large_for_the_log_is_left_to_the_table() {
    let Some(place) = Place::open().await else { return };
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
            // The broker in memory takes neither of them. The table has loaded the first one only.
            eventually("dead letters", async || place.rows(2).await == 2).await;
            let unread =
                "SELECT count(*) FROM outbox_messages WHERE last_error LIKE '%payload has 70000000 bytes%'";
            assert_eq!(place.number(unread).await, 1);
        })
        .await;
    place.assert_balanced();
    place.close().await;
}
