//! Hands messages over from a polling relay to the log and back, and between log relays.

use outbox_core::shutdown::CancellationToken;
use outbox_core::{Relay, RelayConfig};
use outbox_sea_orm::SqlStore;

use crate::reading::futures_join;
use crate::support::{Place, init, quick, sleep, until_reads};

crate::on_a_log! {
    a_second_relay_stands_by_and_takes_over,
    running_log_relay_survives_drop_and_init,
}

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

async fn a_second_relay_stands_by_and_takes_over(place: &Place) {
    let (first, second) = (place.relay(), place.relay());
    let (of_first, of_second) = (first.health(), second.health());
    let (stop_first, stop_second) = (CancellationToken::new(), CancellationToken::new());
    let scenario = async {
        place.write(0..5, 4).await;
        place.published().await;
        let is_settled = || {
            let (first, second) = (of_first.status(), of_second.status());
            first.reads && second.stands_by || second.reads && first.stands_by
        };
        while !is_settled() {
            sleep(10).await;
        }
        let (reader, other) = match of_first.status().reads {
            true => (&stop_first, &of_second),
            false => (&stop_second, &of_first),
        };
        reader.cancel();
        place.write(0..5, 4).await;
        place.published().await;
        while !other.status().reads {
            sleep(10).await;
        }
        stop_first.cancel();
        stop_second.cancel();
    };
    let (first, second, ()) = tokio::join!(
        first.run(stop_first.clone()),
        second.run(stop_second.clone()),
        scenario
    );
    first.unwrap();
    second.unwrap();
    place.assert_balanced();
}

async fn running_log_relay_survives_drop_and_init(place: &Place) {
    let stop_writers = CancellationToken::new();
    let write = async |n: u32| {
        while !stop_writers.is_cancelled() {
            place.write(n * 4..n * 4 + 4, 1).await;
        }
    };
    let (relay, shutdown) = (place.relay(), CancellationToken::new());
    let health = relay.health();
    let scenario = async {
        until_reads(&health).await;
        for _ in 0..3 {
            sleep(300).await;
            place.log().drop().await.unwrap();
            sleep(300).await;
            init(&place.log()).await;
        }
        stop_writers.cancel();
    };
    let scenario = async {
        tokio::join!(futures_join((0..4).map(write)), scenario);
        place.published().await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    report.unwrap();
    place.assert_balanced();
}
