//! The log on the dashboard, while a relay reads it and afterwards.
#![cfg(unix)]

use outbox::testing::eventually;

use crate::log::{ask, reading, start, until_it_reads, until_on_stream};
use crate::operate::serve::Served;
use crate::place::{Kind, Place};

#[tokio::test]
async fn dashboard_shows_running_and_stopped_log_relay() {
    let Some(place) = Place::open(Kind::Logical).await else {
        return;
    };
    let config = reading(&place, &place.name);
    ask(&place, &config, "migrate --yes", &[]).expect(0);
    ask(&place, &config, "relay log init --yes", &[]).expect(0);
    let mut relay = start(&place, &config);
    relay.until_ready().await;
    until_it_reads(&relay).await;
    place.record(3).await;
    until_on_stream(&place, 3).await;

    let served = Served::start_with(&place, &place.url, &config, &[]);
    let (_, first) = served.get("/", &[]).await;
    assert!(!first.contains("the log"), "{first}");
    relay.terminate();
    assert_eq!(relay.end().await.code(), Some(0), "{}", relay.log());
    place.record(2).await;
    eventually("a log without reader", async || {
        let (_, after) = served.get("/", &[]).await;
        after.contains("no relay reads the log; ") && after.contains("log.read = true")
    })
    .await;
    drop(served);
    ask(&place, &config, "relay log drop --yes", &[]).expect(0);
    place.close().await;
}
