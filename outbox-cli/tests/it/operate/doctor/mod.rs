//! `outbox doctor`: each problem is produced on real servers and found with its repair.

mod away;
mod database;
mod nats;
mod restore;

use outbox::core::RelayHealth;
use outbox::nats::async_nats::jetstream::stream::{Config, DiscardPolicy};
use outbox::nats::async_nats::jetstream::{self, Context};
use outbox::prelude::*;
use sea_orm::ConnectionTrait as _;
use serde_json::Value;

use super::answer::{Answer, ask};
use super::plant::Planted;
use crate::place::{Kind, Place};

fn found(answer: &Answer) -> Vec<(String, String)> {
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let json = answer.json();
    let findings = json[0]["findings"].as_array().unwrap();
    for finding in findings {
        for key in ["seen", "needed"] {
            assert!(!text(finding, key).is_empty(), "{finding}");
        }
        assert!(
            finding["next"].is_string() || finding["advice"].is_string(),
            "{finding}"
        );
    }
    findings
        .iter()
        .filter(|finding| !syncs_nothing(finding))
        .map(|finding| (text(finding, "check"), text(finding, "subject")))
        .collect()
}

fn syncs_nothing(finding: &Value) -> bool {
    let seen = finding["seen"].as_str().unwrap();
    finding["check"] == "database-setting" && seen.contains("so a crash loses commits")
}

fn checks(answer: &Answer) -> Vec<String> {
    found(answer).into_iter().map(|(check, _)| check).collect()
}

fn next(answer: &Answer, check: &str) -> String {
    of_finding(answer, check, "next")
}

fn statement(answer: &Answer, check: &str) -> String {
    let advice = of_finding(answer, check, "advice");
    let (_, statement) = advice.split_once(": ").unwrap();
    statement.to_owned()
}

fn of_finding(answer: &Answer, check: &str, key: &str) -> String {
    let json = answer.json();
    let findings = json[0]["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["check"] == check).unwrap();
    finding[key]
        .as_str()
        .unwrap_or_else(|| panic!("no {key}: {finding}"))
        .to_owned()
}

fn doctor(place: &Place, more: &[&str]) -> Answer {
    let mut answer = ask(place, &[&["doctor", "-o", "json"], more].concat());
    if answer.code == Some(3) && found(&answer).is_empty() {
        answer.code = Some(0);
    }
    answer
}

async fn context(place: &Place) -> Context {
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    jetstream::new(client)
}

async fn settings(place: &Place) -> Config {
    let stream = context(place).await.get_stream(&place.name).await.unwrap();
    stream.cached_info().config.clone()
}

async fn sound(kind: Kind) -> Option<Planted> {
    let planted = Planted::open(kind).await?;
    if let Kind::Sqlite = kind {
        let log = "PRAGMA journal_mode = WAL";
        planted.place.db.execute_unprepared(log).await.unwrap();
    }
    planted.placed("1").await;
    planted.publish().await;
    planted.make_inbox().await;
    planted.announce(RelayHealth::Healthy).await;
    let place = &planted.place;
    let bounded = Config {
        max_bytes: 1 << 30,
        discard: DiscardPolicy::New,
        ..settings(place).await
    };
    context(place).await.update_stream(bounded).await.unwrap();
    let answer = doctor(place, &[]).expect(0);
    assert_eq!(found(&answer), []);
    Some(planted)
}
