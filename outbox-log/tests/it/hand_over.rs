//! Hands messages over from a polling relay to the log and back, and between log relays.

use outbox_core::shutdown::CancellationToken;
use outbox_core::{Relay, RelayConfig};
use outbox_sea_orm::SqlStore;

use crate::reading::futures_join;
use crate::support::{Place, init, quick, sleep, until_reads};

crate::without_a_log! {
    log_relay_takes_over_a_backlog_without_gap_or_copy,
}

fn polling(place: &Place) -> Relay<SqlStore, outbox_testing::MemoryPublisher> {
    Relay::new(SqlStore::new(place.db.clone()), place.broker.publisher()).with_config(quick())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_over_under_load_keeps_all_messages_in_order() {
    if let Some(place) = Place::without_log().await {
        hand_over(place).await;
    }
}

/// If the snapshot were older than the table's lock, commits during the lock wait would be
/// invisible. Their messages would stay logged, and no relay would publish them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_over_loses_nothing_at_repeatable_read() {
    if let Some(place) = Place::at_isolation("repeatable read").await {
        hand_over(place).await;
    }
}

async fn hand_over(place: Place) {
    let (stop_writers, stop_polling) = (CancellationToken::new(), CancellationToken::new());
    let write = async |n: u32| {
        while !stop_writers.is_cancelled() {
            place.write(n * 4..n * 4 + 4, 1).await;
        }
    };
    let scenario = async {
        for _ in 0..3 {
            sleep(300).await;
            init(&place.log()).await;
            let stop = CancellationToken::new();
            let relay = place.relay();
            let health = relay.health();
            let turn = async {
                until_reads(&health).await;
                sleep(700).await;
                place.log().drop().await.unwrap();
                sleep(100).await;
                stop.cancel();
            };
            let (ended, ()) = tokio::join!(relay.run(stop.clone()), turn);
            ended.unwrap();
        }
        stop_writers.cancel();
    };
    let (first, second) = (polling(&place), polling(&place));
    let scenario = async {
        tokio::join!(futures_join((0..4).map(write)), scenario);
        place.published().await;
        stop_polling.cancel();
    };
    let relays = async { tokio::join!(first.run(stop_polling.clone()), second.run(stop_polling.clone())) };
    let ((first, second), ()) = tokio::join!(relays, scenario);
    assert!(first.unwrap().published + second.unwrap().published > 0);
    assert_eq!(place.rows(0).await, 0);
    place.close_balanced().await;
}

/// Half of the messages are pending in the table. Later messages of the same aggregates are
/// published from the log.
async fn log_relay_takes_over_a_backlog_without_gap_or_copy(place: &Place) {
    let write = async |n: u32| {
        for _ in 0..10 {
            for aggregate in n * 10..n * 10 + 10 {
                place.write_of(&aggregate.to_string(), 10).await;
            }
        }
    };
    futures_join((0..5).map(write)).await;
    init(&place.log()).await;
    futures_join((0..2).map(write)).await;
    assert_eq!((place.rows(0).await, place.rows(4).await), (5_000, 2_000));
    let relay = place.relay().with_config(RelayConfig::default());
    let stop = CancellationToken::new();
    let scenario = async {
        futures_join((2..5).map(write)).await;
        place.published().await;
        stop.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(stop.clone()), scenario);
    assert_eq!(report.unwrap().published, 10_000);
    assert_eq!(place.written(), 10_000);
    assert_eq!(place.copies(), 0);
    assert_eq!(place.rows(0).await + place.rows(3).await, 0);
    place.assert_balanced();
}
