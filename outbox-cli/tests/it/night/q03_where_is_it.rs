//! Where is order 4711? It is a dead letter of a consumer.

use super::page::check;
use crate::operate::plant::Planted;
use crate::place::Kind;

#[tokio::test]
async fn timeline_shows_what_each_consumer_has_made_of_it() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    planted.placed("4711").await;
    planted.publish().await;
    planted.handle().await;
    let answer = check(&planted, "timeline order/4711", 0);
    assert!(answer.out.contains("billing: dead-letter"), "{answer:?}");
    planted.close().await;
}
