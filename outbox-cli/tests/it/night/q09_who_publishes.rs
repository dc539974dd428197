//! Is a relay dead? Its partitions are not taken yet.

use std::time::Duration;

use outbox::core::{Fitness, OutboxStore as _, OwnerId};
use outbox::testing::eventually;

use super::page::check;
use crate::operate::answer::ask;
use crate::operate::plant::{LONG, Planted};
use crate::place::Kind;

const SHORT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn relay_list_names_dead_and_live_relays() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let (place, store) = (&planted.place, &planted.store);
    // Pod names; the default (host and process id) differs in each run.
    let named = |name: &str| store.clone().with_relay_name(name);
    let (lives, died) = (OwnerId::fresh(), OwnerId::fresh());
    let announced = named("shop-relay-0")
        .announce(lives, LONG, &Fitness::Fit.into())
        .await;
    announced.unwrap();
    assert_eq!(store.acquire(lives, LONG, 61).await.unwrap().len(), 61);
    let announced = named("shop-relay-1")
        .announce(died, SHORT, &Fitness::Fit.into())
        .await;
    announced.unwrap();
    assert_eq!(store.acquire(died, SHORT, 3).await.unwrap().len(), 3);
    let relays = || ask(place, "relay list -o json").expect(0).json();
    eventually("the end of its leases", async || {
        relays()[1]["is_alive"].as_bool() == Some(false)
    })
    .await;
    let dead = relays()[1].clone();
    assert_eq!(
        (&dead["owner"], &dead["partitions"]),
        (&died.to_string().into(), &3.into()),
        "{dead}"
    );
    check(&planted, "relay list", 0);
    // After an orderly stop of the other relay, the dead relay is still listed.
    store.leave(lives).await.unwrap();
    let nobody = ask(place, "relay list").expect(4);
    assert!(
        nobody.out.contains(&died.to_string()) && nobody.said.contains("no relay is alive"),
        "{nobody:?}"
    );
    planted.close().await;
}
