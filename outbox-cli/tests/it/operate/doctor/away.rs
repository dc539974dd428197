//! A server that is away: one finding, without a wait for each question.

use std::time::Duration;

use super::checks;
use crate::operate::answer::{Answer, logged_in};
use crate::place::{Kind, Place};

/// With a bound that no test would wait for even once.
async fn doctor(place: Place, database: &'static str, nats: &'static str) -> Answer {
    let asked = tokio::task::spawn_blocking(move || {
        logged_in(
            &place,
            database,
            nats,
            &["doctor", "-o", "json", "--timeout", "10m"],
        )
    });
    let answer = tokio::time::timeout(Duration::from_secs(120), asked).await;
    answer.expect("no waiting").unwrap()
}

#[tokio::test]
async fn servers_that_refuse_connections_are_one_finding_each() {
    for database in [
        "postgres://relay@127.0.0.1:1/shop",
        "mysql://relay@127.0.0.1:1/shop",
    ] {
        let Some(place) = Place::open(Kind::Sqlite).await else {
            return;
        };
        let answer = doctor(place, database, "nats://127.0.0.1:1").await.expect(4);
        assert_eq!(checks(&answer), ["database", "nats"], "{answer:?}");
        assert_eq!(answer.out.matches("onnection refused").count(), 2, "{answer:?}");
    }
}
