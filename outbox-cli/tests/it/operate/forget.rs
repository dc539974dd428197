//! `outbox purge` on real servers.

use outbox::core::RelayHealth;

use super::answer::ask;
use super::plant::{Planted, dead};
use crate::place::{Kind, on_each_database};

async fn purge_deletes_published_aggregates_only(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    planted.placed("1").await;
    planted.placed("2").await;
    planted.publish().await;
    planted.handle().await;
    let halting = planted.placed("2").await;
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&leases, halting, dead(true)).await;
    ask(place, "purge order/3").expect(5);

    let forget = ["purge", "order/1", "order/2"];
    let preview = ask(place, &forget).expect(0);
    for text in [
        "  order/1: 1 message\n",
        "order/2 is unchanged: of its 2 messages",
        "its sequences start at 1",
    ] {
        assert!(preview.out.contains(text), "{text}: {preview:?}");
    }
    assert!(preview.said.contains("re-run with `--yes`"), "{preview:?}");
    assert_eq!(
        place.count("outbox_messages", "1 = 1").await,
        3,
        "a preview changes nothing"
    );

    let words = [&forget[..], &["--dead-letters", "--yes", "-o", "json"]].concat();
    let done = ask(place, &words).expect(3).json();
    assert_eq!(
        (&done["messages"], &done["left"]),
        (&1.into(), &["order/2"][..].into())
    );
    assert_eq!((&done["dead_letters"], &done["busy"]), (&2.into(), &0.into()));
    assert_eq!(place.count("outbox_messages", "aggregate_id = '1'").await, 0);
    assert_eq!(place.count("outbox_aggregates", "aggregate_id = '1'").await, 0);
    assert_eq!(place.count("inbox_dead_letters", "1 = 1").await, 0);
    assert_eq!(place.count("outbox_messages", "aggregate_id = '2'").await, 2);
    ask(place, "purge order/1 --yes").expect(5);
    planted.close().await;
}

on_each_database!(purge_deletes_published_aggregates_only);
