//! WAL retained by a slot while the stream is full, and while the outbox is idle.

use std::time::Duration;

use outbox_core::Health;
use outbox_log::LogConfig;
use outbox_nats::async_nats::jetstream::stream::DiscardPolicy;

use super::{Place, run_relay, until};

const SEGMENT: u64 = 16 << 20;

const ACCOUNTS: [&str; 3] = ["1", "2", "3"];

impl Place {
    async fn end(&self) -> i64 {
        self.number("pg_current_wal_insert_lsn() - '0/0'").await
    }

    async fn confirmed(&self) -> i64 {
        let sql = format!(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{}_log'",
            self.name
        );
        self.number(&sql).await
    }

    async fn retained(&self) -> u64 {
        let status = self.log().status().await.unwrap();
        status.retained_bytes.unwrap_or_default()
    }

    async fn write_elsewhere(&self, megabytes: u32) {
        self.execute("CREATE TABLE IF NOT EXISTS other (filler text)")
            .await;
        self.execute(&format!(
            "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, {megabytes} * 1000)"
        ))
        .await;
    }
}

/// Read messages become pending. Otherwise the slot would retain all WAL until the disk is full or
/// the slot is invalidated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_with_a_full_stream_does_not_fill_the_disk() {
    let Some(place) = Place::private(&["max_slot_wal_keep_size=64MB"]).await else {
        return;
    };
    let log_config = LogConfig::default()
        .checkpoint_every(Duration::from_millis(100))
        .retained_max(1 << 20);
    let relay = place.relay().with_log_config(log_config);
    let health = relay.health();
    run_relay(&relay, async {
        place.write(&ACCOUNTS, 5).await;
        place.published().await;
        place
            .reconfigure(|config| {
                config.discard = DiscardPolicy::New;
                config.max_messages = 15;
            })
            .await;
        place.write(&ACCOUNTS, 20).await;
        let before = place.confirmed().await;
        place.write_elsewhere(8).await;
        place.execute("SELECT pg_switch_wal()").await;
        place.execute("CHECKPOINT").await;
        let (written, kept) = (place.end().await, place.retained().await);
        assert!(kept > 1 << 20, "{kept}");
        until("no warning reports that the disk fills", async || {
            let status = health.status();
            let is_degraded = matches!(health.now(), Health::Degraded { reasons } if reasons
                .iter()
                .any(|reason| reason.contains("bytes of the database's disk")));
            status.adopts && is_degraded && status.retained.is_some_and(|retained| retained.safe.is_some())
        })
        .await;
        until("the table adopts nothing", async || place.in_table().await > 0).await;
        until("the log is not freed", async || {
            // The server removes WAL only up to a checkpoint before the confirmed position of the
            // slot.
            place.execute("CHECKPOINT").await;
            place.write(&ACCOUNTS, 1).await;
            let confirmed = place.confirmed().await;
            confirmed > before && confirmed >= written && place.retained().await < kept / 2
        })
        .await;
        assert_eq!(place.arrived().await.len(), 15, "the stream takes nothing");

        place.reconfigure(|config| config.max_messages = -1).await;
        place.published().await;
        until("the relay still adopts messages", async || {
            !health.status().adopts
        })
        .await;
        place.write(&ACCOUNTS, 2).await;
        place.published().await;
    })
    .await;
    assert!(!place.log().status().await.unwrap().is_lost);
    place.assert_balanced().await;
    place.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_log_retains_no_wal_of_other_writers() {
    let Some(place) = Place::private(&[]).await else {
        return;
    };
    let relay = place.relay();
    let health = relay.health();
    run_relay(&relay, async {
        until("no relay reads the log", async || health.status().reads).await;
        let before = place.end().await;
        place.write_elsewhere(50).await;
        place.execute("CHECKPOINT").await;
        let written = place.end().await;
        assert!(written - before > 3 * SEGMENT as i64, "{before} {written}");
        until("the position stands still", async || {
            place.confirmed().await >= written
        })
        .await;
        until("the disk is not freed", async || {
            place.retained().await < SEGMENT + (1 << 20)
        })
        .await;
    })
    .await;
    place.close().await;
}
