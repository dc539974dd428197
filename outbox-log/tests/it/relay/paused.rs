//! A log relay while event types or aggregates are paused.

use outbox_core::PauseRequest;

use super::*;

async fn pause(store: &MemoryStore, aggregate_type: Option<&str>) {
    let request = PauseRequest {
        aggregate_type: aggregate_type.map(str::to_owned),
        reason: "overrun".to_owned(),
        by: "alice".to_owned(),
        lasts: None,
    };
    store.pause(&request).await.unwrap();
}

/// Messages of a paused type become pending in the table, so that the log need not retain them.
#[tokio::test(start_paused = true)]
async fn table_adopts_messages_of_a_paused_type() {
    let logged = Logged::new();
    pause(&logged.store, Some("account")).await;
    let relay = logged.relay();
    logged
        .run(&relay, async {
            sleep(1_000).await;
            credit(&logged.store, 2, 3);
            let all_wait = || logged.store.rows().iter().all(|row| row.status == Waiting);
            while !all_wait() {
                sleep(10).await;
            }
            sleep(60_000).await;
            assert_eq!(logged.broker.publishes(), 0);
            assert_eq!(
                relay.health().status().undecided,
                0,
                "the log retains no paused message"
            );
            assert!(logged.store.unpause(Some("account")).await.unwrap());
            logged.drained().await;
        })
        .await;
    logged.assert_balanced();
    assert!(logged.store.rows().iter().all(|row| row.failures == 0));
}

/// The log relay reads until its memory is full, and no message becomes pending.
#[tokio::test(start_paused = true)]
async fn pause_of_all_aggregates_holds_the_log() {
    let logged = Logged::new();
    pause(&logged.store, None).await;
    let relay = logged.relay();
    logged
        .run(&relay, async {
            credit(&logged.store, 2, 3);
            sleep(600_000).await;
            assert_eq!(logged.broker.publishes(), 0);
            let health = relay.health().now().to_string();
            assert!(
                health.contains("publishing of all messages is paused by alice"),
                "{health}"
            );
            assert!(logged.store.unpause(None).await.unwrap());
            logged.drained().await;
        })
        .await;
    logged.assert_balanced();
}
