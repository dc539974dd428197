//! Who is behind, and will it catch up? A consumer has two messages before it, and no process asks for them.

use super::page::check;
use crate::operate::plant::Planted;
use crate::place::Kind;

#[tokio::test]
async fn lag_says_how_many_are_left_and_that_nobody_receives() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    // The first run of the consumer makes it, with nothing to handle.
    planted.publish().await;
    planted.handle().await;
    planted.placed("4711").await;
    planted.placed("4712").await;
    planted.publish().await;
    check(&planted, "consumers list", 0);
    let answer = check(&planted, "consumers lag billing", 3);
    assert!(answer.out.contains("no process asks for messages"), "{answer:?}");
    planted.close().await;
}
