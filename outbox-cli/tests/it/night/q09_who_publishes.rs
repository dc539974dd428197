//! Is a relay dead, and who owns what? One relay is left, and has taken half of the partitions.

use outbox::core::{Fitness, OutboxStore as _};

use super::page::check;
use crate::operate::answer::ask;
use crate::operate::plant::{LONG, Planted};
use crate::place::Kind;

#[tokio::test]
async fn relays_and_partitions_say_who_is_left() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let owner = planted.announce(Fitness::Fit).await;
    assert_eq!(planted.store.acquire(owner, LONG, 61).await.unwrap().len(), 61);
    check(&planted, "relays", 0);
    let unowned = ask(&planted.place, &["partitions", "--unowned", "-o", "name"]).expect(0);
    assert_eq!(unowned.out.lines().count(), 3);
    check(&planted, "partitions --unowned", 0);
    planted.close().await;
}
