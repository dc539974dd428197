//! `outbox pause` and `outbox unpause` on real servers, with a relay that publishes.

use outbox::core::Fitness;

use super::answer::ask;
use super::plant::Planted;
use crate::place::Kind;

async fn a_pause_is_previewed_begun_told_and_ended(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    let id = planted.placed("1").await.to_string();
    planted.relay(Fitness::Fit).await;
    ask(place, &["pause", "--list"]).expect(5);
    ask(place, &["unpause"]).expect(5);

    let pause = [
        "pause",
        "--aggregate-type",
        "order",
        "--for",
        "2h",
        "--reason",
        "billing is overrun",
        "--actor",
        "alice",
    ];
    let preview = ask(place, &pause).expect(0);
    for text in [
        "would pause publishing of aggregates of type order\n",
        "  1 message waits now",
        "after 7200 s, or with `outbox unpause --aggregate-type order`",
    ] {
        assert!(preview.out.contains(text), "{text}: {preview:?}");
    }
    assert!(preview.said.contains("repeat it with `--yes`"), "{preview:?}");
    assert_eq!(
        place.count("outbox_pauses", "1 = 1").await,
        0,
        "a preview changes nothing"
    );

    ask(place, &[&pause[..], &["--yes"]].concat()).expect(0);
    let listed = ask(place, &["pause", "--list", "-o", "json"]).expect(0).json();
    assert_eq!(listed[0]["by"], "alice");
    assert_eq!(listed[0]["aggregate_type"], "order");
    let left = listed[0]["ends_in_seconds"].as_f64().expect("it ends");
    assert!(left > 7000.0 && left <= 7200.0, "{left}");

    let status = ask(place, &["status"]).expect(3);
    for text in [
        "publishing of aggregates of type order is paused by alice",
        "next: outbox unpause --aggregate-type order",
    ] {
        assert!(status.out.contains(text), "{text}: {status:?}");
    }
    let why = ask(place, &["why", &id, "-o", "json"]).json();
    assert_eq!(why["findings"][0]["cause"], "paused");
    assert_eq!(
        why["findings"][0]["next"][0],
        "outbox unpause --aggregate-type order"
    );
    let why = ask(place, &["why", "order/1", "-o", "json"]).json();
    assert_eq!(why["findings"][0]["cause"], "paused");

    let unpause = ["unpause", "--aggregate-type", "order"];
    assert!(
        ask(place, &unpause)
            .expect(0)
            .said
            .contains("repeat it with `--yes`")
    );
    ask(place, &[&unpause[..], &["--yes"]].concat()).expect(0);
    assert_eq!(place.count("outbox_pauses", "1 = 1").await, 0);
    ask(place, &[&unpause[..], &["--yes"]].concat()).expect(5);
    planted.close().await;
}

#[tokio::test]
async fn a_pause_in_sqlite_is_previewed_begun_told_and_ended() {
    a_pause_is_previewed_begun_told_and_ended(Kind::Sqlite).await;
}

#[tokio::test]
async fn a_pause_in_postgres_is_previewed_begun_told_and_ended() {
    a_pause_is_previewed_begun_told_and_ended(Kind::Postgres).await;
}

#[tokio::test]
async fn a_pause_in_mariadb_is_previewed_begun_told_and_ended() {
    a_pause_is_previewed_begun_told_and_ended(Kind::MariaDb).await;
}
