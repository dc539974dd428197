//! Is anything lost? The stream lost one of three published messages.

use outbox::nats::EventStream;
use outbox::nats::async_nats::jetstream;

use super::page::check;
use crate::operate::plant::Planted;
use crate::place::Kind;

#[tokio::test]
async fn reconcile_counts_what_the_stream_lacks_and_prove_names_it() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let mut ids = Vec::new();
    for order in ["4710", "4711", "4712"] {
        ids.push(planted.placed(order).await);
    }
    planted.publish().await;
    let place = &planted.place;
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let stream = jetstream::new(client).get_stream(&place.name).await.unwrap();
    assert!(stream.delete_message(2).await.unwrap());
    let answer = check(&planted, "reconcile --since 3h --until 0s", 3);
    assert!(answer.said.contains("repeat it with `--yes`"), "{answer:?}");
    let books = check(&planted, "prove --since 3h --until 0s", 4);
    assert!(books.out.contains("next: outbox reconcile --since "), "{books:?}");
    assert!(books.out.contains("lost 1, "), "{books:?}");
    let (_, after) = books.out.split_once("\n    lost ").unwrap();
    let lost = after.lines().next().unwrap();
    assert!(ids.iter().any(|id| id.to_string() == lost), "{lost}: {books:?}");
    planted.close().await;
}
