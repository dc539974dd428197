//! What would a retry do? One of two dead letters halts its aggregate.

use outbox::core::Fitness;

use super::page::check;
use crate::operate::answer::ask;
use crate::operate::plant::{Planted, dead};
use crate::place::Kind;

#[tokio::test]
async fn a_preview_says_how_many_and_what_becomes_of_the_order() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    // Ensures that the stream and a consumer exist.
    planted.placed("4710").await;
    planted.publish().await;
    planted.handle().await;
    let (halting, passed) = (planted.placed("4711").await, planted.placed("4712").await);
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, halting, dead(true)).await;
    planted.settle(&leases, passed, dead(false)).await;
    let answer = check(&planted, "retry --type order.placed", 0);
    assert!(answer.said.contains("nothing was changed"), "{answer:?}");
    let words = ["list", "--status", "dead", "-o", "name"];
    assert_eq!(ask(&planted.place, &words).expect(0).out.lines().count(), 2);
    planted.close().await;
}
