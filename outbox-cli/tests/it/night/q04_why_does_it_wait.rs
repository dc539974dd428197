//! Why does it wait? A dead letter halts its aggregate.

use outbox::core::Fitness;

use super::page::check;
use crate::operate::plant::{Planted, dead};
use crate::place::Kind;

#[tokio::test]
async fn why_names_the_dead_letter_and_what_helps() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let first = planted.placed("4711").await;
    planted.placed("4711").await;
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, first, dead(true)).await;
    let answer = check(&planted, "why order/4711", 4);
    assert!(
        answer.out.contains(&format!("outbox retry {first}")),
        "{answer:?}"
    );
    planted.close().await;
}
