//! What the dashboard shows of the log while a relay reads it, and after that.
#![cfg(unix)]

use outbox::testing::eventually;
use serde_json::{Value, json};

use crate::log::{ask, reading, start, until_it_reads, until_on_stream};
use crate::operate::serve::Served;
use crate::place::{Kind, Place};

/// Waits until the overview says this of the log. A page looks at it each ten seconds.
async fn until_the_log(served: &Served, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    eventually(what, async || {
        last = served.json("/overview.json").await;
        holds(&last["log"])
    })
    .await;
    last
}

/// Nothing had ever looked at a log that a relay reads: only at one that a test describes.
#[tokio::test]
async fn the_dashboard_shows_a_log_that_is_read_and_that_its_relay_has_stopped() {
    let Some(place) = Place::open(Kind::Logical).await else {
        return;
    };
    let config = reading(&place, &place.name);
    ask(&place, &config, &["migrate", "--yes"], &[]).expect(0);
    ask(&place, &config, &["log", "init", "--yes"], &[]).expect(0);
    let mut relay = start(&place, &config);
    relay.until_ready().await;
    until_it_reads(&relay).await;
    place.record(3).await;
    until_on_stream(&place, 3).await;

    let served = Served::start_with(&place, &place.url, &config, &[]);
    let first = until_the_log(&served, "a log that is read", |log| log["is_read"] == true).await;
    let (log, slot) = (&first["log"], format!("{}_log", place.name));
    assert_eq!(
        (&log["is_on"], &log["exists"], &log["name"], &log["reason"]),
        (&json!(true), &json!(true), &json!(slot), &Value::Null)
    );
    assert!(
        log["retained_bytes"].is_u64() && log["behind_bytes"].is_u64() && log["stored_seconds_ago"].is_f64(),
        "{log}"
    );
    let stored = log["stored"].as_u64().unwrap();
    let (_, page) = served.get("/", &[]).await;
    for expected in [
        "are the log's",
        &format!("<code>{slot}</code> is read by a relay"),
        "Decided up to",
        "Kept of the database's disk",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    place.record(2).await;
    until_on_stream(&place, 5).await;
    let rises = |log: &Value| log["stored"].as_u64().unwrap() > stored;
    until_the_log(&served, "a position that rises", rises).await;

    relay.terminate();
    assert_eq!(relay.end().await.code(), Some(0), "{}", relay.log());
    place.record(2).await;
    let is_stuck = |log: &Value| log["is_read"] == false && log["undecided"].as_u64() >= Some(2);
    let after = until_the_log(&served, "a log that nobody reads", is_stuck).await;
    assert_eq!(after["status"]["state"], "stuck", "{after}");
    assert_eq!(after["log"]["reason"]["state"], "stuck", "{after}");
    let (_, page) = served.get("/", &[]).await;
    for expected in ["is read by nobody", "No relay reads the log; ", "log.read = true"] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    drop(served);
    ask(&place, &config, &["log", "drop", "--yes"], &[]).expect(0);
    place.close().await;
}
