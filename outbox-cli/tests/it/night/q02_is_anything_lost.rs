//! Is anything lost? The stream has lost one of three messages that were published.

use outbox::nats::EventStream;
use outbox::nats::async_nats::jetstream;

use super::page::check;
use crate::operate::plant::Planted;
use crate::place::Kind;

#[tokio::test]
async fn reconcile_counts_what_the_stream_lacks() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    for order in ["4710", "4711", "4712"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    let place = &planted.place;
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let stream = jetstream::new(client).get_stream(&place.name).await.unwrap();
    assert!(stream.delete_message(2).await.unwrap());
    let answer = check(&planted, "reconcile --since 3h --until 0s", 3);
    assert!(answer.said.contains("repeat it with `--yes`"), "{answer:?}");
    planted.close().await;
}
