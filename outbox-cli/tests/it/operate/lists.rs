//! `outbox status`, `list`, `show` and `relay list` on real servers.

use outbox::core::{MessageId, RelayHealth};

use super::answer::{Answer, ask, at, run};
use super::plant::{Planted, dead};
use crate::place::{Kind, on_each_database};

fn lines(answer: &Answer) -> Vec<&str> {
    answer.out.lines().collect()
}

async fn status_exit_code_matches_the_state(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    planted.publish().await;
    let state = |answer: &Answer| answer.json()[0]["state"].as_str().unwrap().to_owned();
    let answer = ask(place, "status -o json").expect(3);
    assert_eq!(answer.json()[0]["reasons"][0]["what"], "no relay is alive");
    let id = planted.placed("1").await;
    assert_eq!(state(&ask(place, "status -o json").expect(4)), "stuck");
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    assert_eq!(state(&ask(place, "status -o json").expect(0)), "healthy");
    let away = at(place, "nats://127.0.0.1:1", "status").expect(3);
    assert!(away.out.contains("cannot reach nats from this host"), "{away:?}");
    planted.settle(&leases, id, dead(true)).await;
    let answer = ask(place, "status").expect(3);
    assert!(
        answer.out.contains("next: outbox list --status dead"),
        "{answer:?}"
    );
    assert!(answer.out.contains("dead letters 1"), "{answer:?}");
    planted.close().await;
}

#[tokio::test]
async fn filters_narrow_a_list_and_nothing_is_5() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    let (one, two) = (planted.placed("1").await, planted.viewed("2").await);
    let names = |words: &[&str]| {
        let answer = ask(place, &[&["list", "-o", "json"], words].concat()).expect(0);
        answer.ids()
    };
    assert_eq!(names(&[]), [two.to_string(), one.to_string()]);
    assert_eq!(names(&["--limit", "1"]), [two.to_string()]);
    for filter in [["--aggregate", "order/1"], ["--type", "order.placed"]] {
        assert_eq!(names(&filter), [one.to_string()], "{filter:?}");
    }
    assert_eq!(
        names(&[
            "--aggregate-type",
            "order",
            "--since",
            "1h",
            "--status",
            "pending"
        ]),
        [two.to_string(), one.to_string()]
    );
    for filter in [
        ["--status", "dead"],
        ["--until", "1h"],
        ["--aggregate", "order/3"],
    ] {
        let answer = ask(place, &[&["list"], &filter[..]].concat()).expect(5);
        assert!(answer.said.contains("no message matches"), "{answer:?}");
    }
    let first = ask(place, "list --limit 1 -o json").expect(0);
    let before = format!("{}.{two}", first.json()[0]["row_id"]);
    assert!(first.said.contains(&format!("--before {before}")), "{first:?}");
    assert_eq!(names(&["--before", &before]), [one.to_string()]);
    ask(place, "list --before 1").expect(2);
    planted.close().await;
}

#[tokio::test]
async fn each_form_holds_the_same_messages() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let place = &planted.place;
    let id = planted.placed("a\u{1b}[2J,\"b\"").await.to_string();
    for form in ["table", "json"] {
        let answer = ask(place, &format!("list -o {form}")).expect(0);
        assert!(answer.out.contains(&id), "{form}: {answer:?}");
        assert!(!answer.out.contains('\u{1b}'), "{form}: {answer:?}");
    }
    assert_eq!(lines(&ask(place, "list")).len(), 2);
    let listed = ask(place, "list -o json").json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(listed[0]["aggregate_id"], "a\u{1b}[2J,\"b\"");
    planted.close().await;
}

#[tokio::test]
async fn payload_is_shown_masked_on_request_only() {
    let Some(planted) = Planted::open(Kind::MariaDb).await else {
        return;
    };
    let place = &planted.place;
    let (known, unknown) = (
        planted.placed("1").await.to_string(),
        planted.viewed("1").await.to_string(),
    );
    for form in ["table", "json"] {
        let without = ask(place, &format!("show {known} -o {form}")).expect(0);
        assert!(!without.out.contains("order_id"), "{without:?}");
        let with = ask(place, &format!("show {known} --payload -o {form}")).expect(0);
        assert!(
            with.out.contains("order_id") && with.out.contains("***"),
            "{with:?}"
        );
        assert!(!with.out.contains("ada@example.org"), "{with:?}");
        let with = ask(place, &format!("show {unknown} --payload -o {form}")).expect(0);
        assert!(with.out.contains("of an unknown event type"), "{with:?}");
    }
    let absent = MessageId::fresh().to_string();
    let answer = ask(place, &format!("show {absent}")).expect(5);
    assert!(
        answer.said.contains(&format!("next: outbox why {absent}")),
        "{answer:?}"
    );
    planted.close().await;
}

#[tokio::test]
async fn relays_are_listed_and_none_is_5() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    let answer = ask(place, "relay list --timeout=9s").expect(5);
    assert!(answer.said.contains("no relay is alive"), "{answer:?}");
    let (owner, _) = planted.relay(RelayHealth::Unknown).await;
    let relays = ask(place, "relay list -o json").expect(0).json();
    assert_eq!(relays[0]["owner"], owner.to_string());
    assert_eq!(
        (&relays[0]["health"], &relays[0]["partitions"]),
        (&"unknown".into(), &64.into())
    );
    planted.close().await;
}

#[tokio::test]
async fn an_outbox_is_chosen_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outbox.toml");
    std::fs::write(
        &file,
        "[[outbox]]\nname = \"a\"\n[[outbox]]\nname = \"b\"\nprefix = \"b_\"\n",
    )
    .unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let servers = [
        ("DATABASE_URL", "sqlite::memory:"),
        ("NATS_URL", "nats://127.0.0.1:1"),
    ];
    let list = |words: &[&str]| run(&[&["list"], words, &config].concat(), &servers);
    let answer = list(&[]).expect(2);
    assert!(
        answer.said.contains("choose one with `--outbox NAME`"),
        "{answer:?}"
    );
    let answer = list(&["--outbox", "c"]).expect(2);
    assert!(
        answer
            .said
            .contains("there is no outbox `c`; the file has `a`, `b`"),
        "{answer:?}"
    );
    let answer = list(&["--outbox", "b"]).expect(1);
    assert!(
        answer
            .said
            .contains(&format!("next: outbox migrate --config {} --outbox b", config[1])),
        "{answer:?}"
    );
}

#[tokio::test]
async fn unavailable_database_exits_1_without_password() {
    let servers = [
        ("DATABASE_URL", "postgres://relay:hunter2@127.0.0.1:1/shop"),
        ("NATS_URL", "nats://u:hunter2@127.0.0.1:1"),
    ];
    for words in ["list", "status", "relay list"] {
        let answer = run(&format!("{words} --timeout=3s"), &servers).expect(1);
        assert!(
            !answer.said.contains("hunter2") && !answer.out.contains("hunter2"),
            "{answer:?}"
        );
        assert!(answer.said.contains("outbox `outbox`: "), "{answer:?}");
    }
}

#[tokio::test]
async fn unavailable_database_does_not_hide_other_outboxes() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let (place, file) = (&planted.place, planted.place.folder.path().join("both.toml"));
    let away = place.outbox("away").replace(&place.name, "gone");
    std::fs::write(&file, format!("{away}{}", place.outbox("shop"))).unwrap();
    let servers = [
        (
            "OUTBOX_AWAY_DATABASE_URL",
            "postgres://relay:hunter2@127.0.0.1:1/shop",
        ),
        ("OUTBOX_SHOP_DATABASE_URL", &place.url),
        ("NATS_URL", &place.nats),
    ];
    let words = [
        "status",
        "--timeout=3s",
        "-o",
        "json",
        "--config",
        file.to_str().unwrap(),
    ];
    let answer = run(&words, &servers).expect(1);
    assert_eq!(answer.json()[0]["outbox"], "shop", "{answer:?}");
    assert!(answer.said.contains("outbox `away`: "), "{answer:?}");
    planted.close().await;
}

#[tokio::test]
async fn arguments_without_sense_are_2() {
    for words in [
        "why 4711",
        "show 4711",
        "list --since yesterday",
        "list --aggregate order",
        "list --limit 0",
        "list -o yaml",
        "resume order/",
    ] {
        run(words, &[]).expect(2);
    }
}

on_each_database!(status_exit_code_matches_the_state);
