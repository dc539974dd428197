//! `outbox pause` and `outbox resume` with a running relay.

use outbox::core::RelayHealth;

use super::answer::ask;
use super::plant::Planted;
use crate::place::{Kind, Place, on_each_database};

async fn pause_is_previewed_started_reported_and_ended(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    let id = planted.placed("1").await.to_string();
    planted.relay(RelayHealth::Healthy).await;
    ask(place, "resume").expect(5);

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
        "after 7200 s, or with `outbox resume --aggregate-type order`",
    ] {
        assert!(preview.out.contains(text), "{text}: {preview:?}");
    }
    assert!(preview.said.contains("re-run with `--yes`"), "{preview:?}");
    let unknown = "no aggregate of this type is known";
    assert!(!preview.out.contains(unknown), "{preview:?}");
    let misspelt = ask(place, "pause --aggregate-type oder").expect(0);
    assert!(misspelt.out.contains(unknown), "{misspelt:?}");
    assert_eq!(
        place.count("outbox_pauses", "1 = 1").await,
        0,
        "a preview changes nothing"
    );

    let paused = ask(place, &[&pause[..], &["--yes", "-o", "json"]].concat()).expect(0);
    let begun = paused.json()["operation"].as_str().unwrap().to_owned();
    assert!(
        paused.said.contains(&format!("outbox audit show {begun}")),
        "{paused:?}"
    );
    let status = ask(place, "status -o json").json();
    let listed = &status[0]["pauses"][0];
    assert_eq!(listed["by"], "alice");
    assert_eq!(listed["aggregate_type"], "order");
    let left = listed["ends_in_seconds"].as_f64().expect("it ends");
    assert!(left > 7000.0 && left <= 7200.0, "{left}");

    let status = ask(place, "status").expect(3);
    for text in [
        "publishing of aggregates of type order is paused by alice",
        "next: outbox resume --aggregate-type order",
    ] {
        assert!(status.out.contains(text), "{text}: {status:?}");
    }
    let why = ask(place, &format!("why {id} -o json")).json();
    assert_eq!(why["findings"][0]["cause"], "paused");
    assert_eq!(
        why["findings"][0]["next"][0],
        "outbox resume --aggregate-type order"
    );
    let why = ask(place, "why order/1 -o json").json();
    assert_eq!(why["findings"][0]["cause"], "paused");

    let unpause = ["resume", "--aggregate-type", "order"];
    assert!(
        ask(place, &unpause)
            .expect(0)
            .said
            .contains("re-run with `--yes`")
    );
    let by_bob = ["--yes", "--actor", "bob", "--reason", "INC-8", "-o", "json"];
    let ended = ask(place, &[&unpause[..], &by_bob].concat()).expect(0).json();
    assert_eq!(place.count("outbox_pauses", "1 = 1").await, 0);
    ask(place, &[&unpause[..], &["--yes"]].concat()).expect(5);

    assert!(ended["operation"].is_string(), "{ended}");
    told(place).await;
    planted.close().await;
}

async fn told(place: &Place) {
    let operations = ask(place, "audit -o json").expect(0).json();
    let told: Vec<_> = operations
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let text = |key: &str| row[key].as_str().unwrap().to_owned();
            (
                text("kind"),
                text("actor"),
                text("reason"),
                row["changed"].as_u64().unwrap(),
            )
        })
        .collect();
    let of =
        |kind: &str, actor: &str, reason: &str| (kind.to_owned(), actor.to_owned(), reason.to_owned(), 1);
    assert_eq!(
        told,
        [
            of("unpause", "bob", "INC-8"),
            of("pause", "alice", "billing is overrun")
        ]
    );
}

on_each_database!(pause_is_previewed_started_reported_and_ended);
