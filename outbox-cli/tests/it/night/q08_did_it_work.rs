//! Did my retry work? A dead letter was retried, and a relay has published it since.

use outbox::core::Fitness;

use super::page::check;
use crate::operate::answer::ask;
use crate::operate::plant::{Planted, dead};
use crate::place::Kind;

#[tokio::test]
async fn what_was_retried_is_published_and_no_dead_letter_is_left() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let id = planted.placed("4711").await;
    let relay = planted.relay(Fitness::Fit).await;
    planted.settle(&relay.1, id, dead(true)).await;
    check(&planted, "retry --aggregate order/4711 --yes", 0);
    planted.publish_after(&relay).await;
    check(&planted, "list --aggregate order/4711", 0);
    ask(&planted.place, &["list", "--status", "dead"]).expect(5);
    planted.close().await;
}
