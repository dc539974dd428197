//! Features of newer PostgreSQL versions, tested by `cargo xtask postgres18`. On older versions the
//! tests do not apply.

use std::path::Path;
use std::process::Command;

use outbox_testing::{backend_url, not_applicable};

use super::{Place, until};

pub(super) fn version() -> Option<u32> {
    let program = backend_url("OUTBOX_TEST_POSTGRES_BIN")?;
    let output = Command::new(Path::new(&program))
        .arg("--version")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let number = text.split_whitespace().find_map(|word| {
        let major = word.split('.').next()?;
        major.parse().ok()
    });
    Some(number.unwrap())
}

/// PostgreSQL 18 invalidates a slot that is idle for this long, at its next checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_invalidated_by_idle_timeout_is_repaired_from_the_table() {
    let Some(version) = version() else { return };
    if version < 18 {
        return not_applicable("before PostgreSQL 18 no slot is invalidated for being idle");
    }
    let Some(place) = Place::private(&["idle_replication_slot_timeout=1s"]).await else {
        return;
    };
    let lost = "SELECT count(*) FROM pg_replication_slots WHERE invalidation_reason = 'idle_timeout'";
    for _ in 0..2 {
        place
            .run(async {
                place.write(&["1", "2", "3"], 10).await;
                place.published().await;
            })
            .await;
        until("the server does not release the slot", async || {
            place.write(&["1", "2", "3"], 1).await;
            place.execute("CHECKPOINT").await;
            place.number(lost).await == 1
        })
        .await;
        assert!(place.log().status().await.unwrap().is_lost);
    }
    place
        .run(async {
            place.write(&["1", "2", "3"], 10).await;
            place.published().await;
        })
        .await;
    assert_eq!(place.number(lost).await, 0);
    place.assert_balanced().await;
    place.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_is_synchronized_to_standby_servers() {
    let Some(version) = version() else { return };
    if version < 17 {
        return not_applicable("before PostgreSQL 17 no slot of a log follows to a standby server");
    }
    let Some(place) = Place::private(&[]).await else {
        return;
    };
    let follows = "SELECT count(*) FROM pg_replication_slots WHERE failover";
    assert_eq!(place.number(follows).await, 1);
    place
        .execute(&format!("SELECT pg_drop_replication_slot('{}_log')", place.name))
        .await;
    place
        .run(async {
            place.write(&["1"], 1).await;
            place.published().await;
        })
        .await;
    assert_eq!(place.number(follows).await, 1);
    place.assert_balanced().await;
    place.close().await;
}
