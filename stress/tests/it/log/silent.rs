//! A replication connection that becomes silent without being closed.

use outbox_core::shutdown::CancellationToken;

use super::proxy::Proxy;
use super::{Place, Relay, config, run_relay, until};

/// `wal_sender_timeout`: after this time the server ends a silent session and frees the slot. It
/// exceeds a stall of the machine.
const SETTINGS: [&str; 1] = ["wal_sender_timeout=10s"];

fn calm(relay: Relay) -> Relay {
    relay.with_config(config())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_relay_replaces_a_reader_with_a_silent_connection() {
    let Some(place) = Place::private(&SETTINGS).await else {
        return;
    };
    let proxy = Proxy::in_front_of(&place.url).await;
    let silent = calm(place.relay_of(place.log_at(&proxy.url, &place.db), &place.db));
    let other = calm(place.relay());
    let (of_silent, of_other) = (silent.health(), other.health());
    let stop = CancellationToken::new();
    let scenario = async {
        until("no relay reads the log", async || of_silent.status().reads).await;
        place.write(&["1", "2", "3"], 10).await;
        place.published().await;
        let second = async {
            until("the other relay is not on standby", async || {
                of_other.status().stands_by
            })
            .await;
            proxy.silence();
            place.write(&["1", "2", "3"], 10).await;
            place.published().await;
            until("the other relay does not read", async || of_other.status().reads).await;
            until("the silent reader does not detect its replacement", async || {
                of_silent.status().stands_by && !of_silent.status().reads
            })
            .await;
            place.write(&["1", "2", "3"], 10).await;
            place.published().await;
        };
        run_relay(&other, second).await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(silent.run(stop.clone()), scenario);
    ended.unwrap();
    place.assert_balanced().await;
    place.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_reopens_a_silent_replication_connection() {
    let Some(place) = Place::private(&SETTINGS).await else {
        return;
    };
    let proxy = Proxy::in_front_of(&place.url).await;
    let relay = place.relay_of(place.log_at(&proxy.url, &place.db), &place.db);
    run_relay(&relay, async {
        place.write(&["1", "2", "3"], 10).await;
        place.published().await;
        proxy.silence();
        place.write(&["1", "2", "3"], 10).await;
        place.published().await;
    })
    .await;
    place.assert_balanced().await;
    place.close().await;
}
