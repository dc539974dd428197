//! Can I wait until morning? The stream drops copies for too short a time, which a relay that stays down would meet.

use outbox::core::Fitness;
use outbox::nats::EventStream;
use outbox::nats::async_nats::jetstream;

use super::page::check;
use crate::operate::plant::Planted;
use crate::place::Kind;

#[tokio::test]
async fn doctor_names_what_does_not_hold_for_long() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    planted.publish().await;
    planted.relay(Fitness::Fit).await;
    let place = &planted.place;
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let context = jetstream::new(client);
    let stream = context.get_stream(&place.name).await.unwrap();
    let mut config = stream.cached_info().config.clone();
    config.duplicate_window = std::time::Duration::from_secs(120);
    context.update_stream(config).await.unwrap();
    let answer = check(&planted, "doctor", 3);
    assert!(answer.out.contains("duplicate-window"), "{answer:?}");
    planted.close().await;
}
