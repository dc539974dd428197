//! `outbox retry`, `replay` and `resume` on real servers: nothing changes without `--yes`.

use outbox::core::{MessageId, RelayHealth};

use super::answer::ask;
use super::plant::{Planted, dead, failed};
use crate::place::{Kind, Place, on_each_database};

fn status(place: &Place, id: MessageId) -> String {
    let json = ask(place, &format!("show {id} -o json")).expect(0).json();
    match json["halts"].as_bool() {
        Some(true) => "halts".to_owned(),
        _ => json["status"].as_str().unwrap().to_owned(),
    }
}

async fn changes_need_yes(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    let (id, behind) = (planted.placed("1").await, planted.placed("1").await);
    let relay = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&relay.1, id, dead(true)).await;
    let name = id.to_string();
    for words in ["retry --skip", "retry", "replay"] {
        let answer = ask(place, &format!("{words} {name}")).expect(0);
        assert!(answer.out.starts_with("would "), "{answer:?}");
        assert!(
            answer.said.contains("nothing was changed; re-run with `--yes`"),
            "{answer:?}"
        );
        assert_eq!(
            (status(place, id).as_str(), status(place, behind).as_str()),
            ("halts", "waiting")
        );
    }
    let skipped = ask(place, &format!("retry --skip {name} --yes -o json"))
        .expect(0)
        .json();
    assert_eq!(
        (&skipped["change"], &skipped["changed"]),
        (&"skip".into(), &1.into())
    );
    assert_eq!(status(place, id), "dead");
    let again = ask(place, &format!("retry --skip {name}")).expect(5);
    assert!(again.said.contains("no dead letter that halts"), "{again:?}");
    let retried = ask(place, "retry --aggregate order/1 --yes").expect(0);
    assert_eq!(retried.out, "1 dead letter is pending again\n");
    assert_ne!(status(place, id), "dead");
    ask(place, "retry --all --yes").expect(5);
    planted.publish_after(&relay).await;
    let replayed = ask(place, "replay --type order.placed --since 1h --yes -o json").expect(0);
    assert_eq!(replayed.json()["changed"], 2);
    assert_eq!(
        ask(place, "list --status pending -o json").expect(0).ids().len(),
        2
    );
    planted.close().await;
}

#[tokio::test]
async fn change_of_everything_needs_all() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    for change in ["retry", "retry --skip", "replay"] {
        let answer = ask(&planted.place, &format!("{change} --yes")).expect(2);
        assert!(answer.said.contains("or write `--all`"), "{answer:?}");
        ask(&planted.place, &format!("{change} --all")).expect(5);
    }
    planted.close().await;
}

#[tokio::test]
async fn preview_reports_the_effect_on_order() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let (halting, passed) = (planted.placed("1").await, planted.placed("2").await);
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&leases, halting, dead(true)).await;
    planted.settle(&leases, passed, dead(false)).await;
    let answer = ask(&planted.place, "retry --type order.placed").expect(0);
    for text in [
        "would retry 2 messages of 2 aggregates",
        "2  error: maximum payload exceeded",
        "1 keeps its order",
        "1 may be published after later messages",
        "1 halted aggregate continues",
    ] {
        assert!(answer.out.contains(text), "{text}: {answer:?}");
    }
    assert!(answer.said.contains("outbox `shop`: postgres "), "{answer:?}");
    planted.close().await;
}

async fn resume_ends_a_back_off_and_no_halt(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    let (one, two) = (planted.placed("1").await, planted.placed("2").await);
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&leases, one, failed()).await;
    planted.settle(&leases, two, dead(true)).await;
    let preview = ask(place, "resume order/1").expect(0);
    assert!(preview.out.contains("its back-off of"), "{preview:?}");
    ask(place, "resume order/1").expect(0);
    let resumed = ask(place, "resume order/1 --yes").expect(0);
    assert_eq!(resumed.out, "order/1: its back-off has ended\n");
    ask(place, "resume order/1 --yes").expect(5);
    let halted = ask(place, "resume order/2 --yes").expect(5);
    assert!(halted.out.contains(&format!("outbox retry {two}")), "{halted:?}");
    assert_eq!(status(place, two), "halts");
    planted.close().await;
}

on_each_database!(changes_need_yes, resume_ends_a_back_off_and_no_halt);
