//! Is it us? No relay is alive.

use super::page::check;
use crate::operate::plant::Planted;
use crate::place::Kind;

#[tokio::test]
async fn status_says_that_no_relay_is_alive() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    planted.publish().await;
    planted.placed("4711").await;
    let answer = check(&planted, "status", 4);
    assert!(answer.out.contains("no relay is alive"), "{answer:?}");
    planted.close().await;
}
