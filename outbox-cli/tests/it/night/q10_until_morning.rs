//! Can I wait until morning? An unread message is about to expire, and the relay is down.

use std::time::Duration;

use outbox::core::Fitness;
use outbox::nats::EventStream;
use outbox::nats::async_nats::jetstream;
use outbox::nats::async_nats::jetstream::Context;
use outbox::nats::async_nats::jetstream::stream::Config;

use super::page::check;
use crate::operate::plant::Planted;
use crate::place::{Kind, Place};

async fn context(place: &Place) -> Context {
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    jetstream::new(client)
}

async fn change(place: &Place, change: impl FnOnce(&mut Config)) {
    let context = context(place).await;
    let stream = context.get_stream(&place.name).await.unwrap();
    let mut config = stream.cached_info().config.clone();
    change(&mut config);
    context.update_stream(config).await.unwrap();
}

#[tokio::test]
async fn a_forecast_names_what_is_deleted_unread_and_what_stands_still() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    planted.publish().await;
    planted.handle().await;
    planted.placed("4711").await;
    planted.publish().await;
    change(&planted.place, |config| config.max_age = Duration::from_hours(8)).await;
    planted.relay(Fitness::Fit).await;
    planted.placed("4712").await;
    let answer = check(&planted, "status --forecast=2s", 3);
    for expected in [
        "billing: its oldest message is deleted by the stream in 7 h",
        "1 message is to be published, as many as before",
        "billing: 1 message is left, and it handles none",
    ] {
        assert!(answer.out.contains(expected), "{expected}: {answer:?}");
    }
    planted.close().await;
}

#[tokio::test]
async fn doctor_names_what_does_not_hold_for_long() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    planted.publish().await;
    planted.relay(Fitness::Fit).await;
    let window = Duration::from_secs(120);
    change(&planted.place, |config| config.duplicate_window = window).await;
    let answer = check(&planted, "doctor", 3);
    assert!(answer.out.contains("duplicate-window"), "{answer:?}");
    planted.close().await;
}
