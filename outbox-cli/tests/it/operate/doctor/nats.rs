//! NATS problems found by `outbox doctor`, and unavailable servers.

use std::time::Duration;

use outbox::core::RelayHealth;
use outbox::inbox::PausedConsumers;
use outbox::nats::async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use outbox::testing::{eventually, free_port};

use super::{checks, context, doctor, found, next, of_finding, settings, sound};
use crate::operate::answer::{Answer, ask, at, logged_in};
use crate::place::{Kind, on_each_database};

const DAY: Duration = Duration::from_hours(24);

#[tokio::test]
async fn unavailable_server_does_not_stop_other_checks() {
    let Some(planted) = sound(Kind::Sqlite).await else {
        return;
    };
    let place = &planted.place;
    let (json, nowhere) = (["doctor", "-o", "json"], free_port());
    let answer = at(place, &format!("nats://127.0.0.1:{nowhere}"), &json).expect(4);
    assert_eq!(checks(&answer), ["nats"]);
    let url = format!("postgres://somebody:hunter2@127.0.0.1:{nowhere}/shop");
    let words = [&json[..], &["--timeout", "1s"]].concat();
    let answer = logged_in(place, &url, &place.nats, &words).expect(4);
    assert!(!answer.out.contains("hunter2"), "{answer:?}");
    assert_eq!(checks(&answer)[0], "database");
    planted.close().await;
}

fn added(command: &str) -> Config {
    let command = command.split("; ").next().unwrap();
    let mut words = command.strip_prefix("nats stream add ").unwrap().split(' ');
    let mut config = Config {
        name: words.next().unwrap().to_owned(),
        ..Config::default()
    };
    for word in words {
        let (flag, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.trim_end_matches('s').parse::<u64>().unwrap();
        match (flag, value) {
            ("--subjects", _) => {
                config.subjects = value.trim_matches('\'').split(',').map(str::to_owned).collect();
            }
            ("--dupe-window", _) => config.duplicate_window = Duration::from_secs(number()),
            ("--max-age", _) => config.max_age = Duration::from_secs(number()),
            // The server reserves `max_bytes`, and the test server has little space.
            ("--max-bytes", _) => config.max_bytes = number().min(1 << 20).try_into().unwrap(),
            ("--replicas", _) => config.num_replicas = number().try_into().unwrap(),
            ("--discard", "new") => config.discard = DiscardPolicy::New,
            ("--storage", "file") | ("--retention", "limits") | ("--defaults", "") => {}
            unknown => panic!("{unknown:?}"),
        }
    }
    config
}

#[tokio::test]
async fn missing_stream_or_wrong_subjects_are_findings() {
    let Some(planted) = sound(Kind::Sqlite).await else {
        return;
    };
    let (place, context) = (&planted.place, context(&planted.place).await);
    let other = Config {
        subjects: vec!["other.>".to_owned() + &place.name],
        ..settings(place).await
    };
    context.delete_stream(&place.name).await.unwrap();
    let answer = doctor(place, &[]).expect(4);
    assert_eq!(checks(&answer), ["stream"]);
    assert!(!answer.out.contains("EventStream"), "{answer:?}");
    context
        .create_stream(added(&next(&answer, "stream")))
        .await
        .unwrap();
    assert_eq!(found(&doctor(place, &[]).expect(0)), []);
    context.delete_stream(&place.name).await.unwrap();
    let other = Config {
        subjects: vec![format!("other-{}.>", place.name)],
        ..other
    };
    context.create_stream(other).await.unwrap();
    let answer = doctor(place, &[]).expect(4);
    assert_eq!(checks(&answer), ["stream"]);
    assert!(answer.out.contains("captures"), "{answer:?}");
    assert!(!answer.out.contains("EventStream"), "{answer:?}");
    let edit = format!("nats stream edit {0} --subjects='other-{0}.>,{0}.>'", place.name);
    assert!(next(&answer, "stream").starts_with(&edit), "{answer:?}");
    planted.close().await;
}

#[tokio::test]
async fn lossy_stream_settings_are_findings() {
    let Some(planted) = sound(Kind::Sqlite).await else {
        return;
    };
    let (place, context) = (&planted.place, context(&planted.place).await);
    let good = settings(place).await;
    let changed = |change: fn(&mut Config)| {
        let mut config = good.clone();
        change(&mut config);
        config
    };
    let plants: [(&str, Config); 7] = [
        (
            "duplicate-window",
            changed(|config| config.duplicate_window = Duration::from_mins(2)),
        ),
        ("max-age", changed(|config| config.max_age = DAY)),
        ("discard", changed(|config| config.discard = DiscardPolicy::Old)),
        ("max-bytes", changed(|config| config.max_bytes = -1)),
        (
            "max-messages-per-subject",
            changed(|config| config.max_messages_per_subject = 7),
        ),
        (
            "max-messages-per-subject",
            changed(|config| {
                config.max_messages_per_subject = 1;
                config.discard_new_per_subject = true;
            }),
        ),
        ("payload-limit", changed(|config| config.max_message_size = 2_000)),
    ];
    for (check, config) in plants {
        context.update_stream(config).await.unwrap();
        let answer = doctor(place, &[]).expect(3);
        assert_eq!(checks(&answer), [check]);
        assert!(
            next(&answer, check).starts_with("nats stream edit "),
            "{answer:?}"
        );
    }
    for (check, config) in [
        (
            "stream-retention",
            changed(|config| config.retention = RetentionPolicy::Interest),
        ),
        ("replicas", changed(|config| config.storage = StorageType::Memory)),
    ] {
        context.delete_stream(&place.name).await.unwrap();
        context.create_stream(config).await.unwrap();
        assert_eq!(checks(&doctor(place, &[]).expect(3)), [check]);
    }
    planted.close().await;
}

async fn consumer_problems_are_findings(kind: Kind) {
    let Some(planted) = sound(kind).await else { return };
    let place = &planted.place;
    planted.handle().await;
    let names = |answer: &Answer| {
        found(answer)
            .into_iter()
            .filter(|(_, about)| about == "billing")
            .map(|(check, _)| check)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&doctor(place, &[]).expect(3)), ["consumer-dead-letters"]);
    ask(place, "dead-letters discard --all --yes").expect(0);
    assert_eq!(names(&doctor(place, &[]).expect(0)), [""; 0]);

    let pauses = PausedConsumers::new(place.db.clone()).with_names(planted.names.clone());
    pauses.pause("billing", "the card service is away").await.unwrap();
    let answer = doctor(place, &[]).expect(3);
    assert_eq!(names(&answer), ["consumer-paused"]);
    let resume = next(&answer, "consumer-paused");
    let words: Vec<&str> = resume.split(' ').skip(1).chain(["--yes"]).collect();
    ask(place, &words).expect(0);
    assert_eq!(names(&doctor(place, &[]).expect(0)), [""; 0]);

    let good = settings(place).await;
    let longer = Config {
        max_age: 30 * DAY,
        ..good.clone()
    };
    context(place).await.update_stream(longer).await.unwrap();
    let answer = doctor(place, &[]).expect(3);
    assert_eq!(names(&answer), ["inbox-memory"]);
    assert!(
        of_finding(&answer, "inbox-memory", "advice").ends_with("at least 721h"),
        "{answer:?}"
    );
    context(place).await.update_stream(good.clone()).await.unwrap();

    planted.placed("2").await;
    planted.publish().await;
    planted.announce(RelayHealth::Healthy).await;
    let answer = doctor(place, &[]).expect(3);
    assert_eq!(names(&answer), ["consumer-behind"]);
    let short = Config {
        max_age: Duration::from_secs(40),
        duplicate_window: Duration::from_secs(1),
        ..good
    };
    context(place).await.update_stream(short).await.unwrap();
    eventually("a message that is nearly too old", async || {
        doctor(place, &[]).code == Some(4)
    })
    .await;
    planted.close().await;
}

on_each_database!(consumer_problems_are_findings);
