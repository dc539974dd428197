//! `outbox relay log` and the log relay on real servers.
#![cfg(unix)]

use outbox::testing::eventually;
use outbox_cli::admin::rights::Role;
use serde_json::Value;

use crate::operate::answer::{Answer, Words, run};
use crate::operate::rights::Login;
use crate::place::{Kind, Place, Program};

pub(crate) fn reading(place: &Place, name: &str) -> String {
    format!(
        "{}[outbox.log]\nread = true\nname = \"{name}\"\n",
        place.outbox("shop")
    )
}

pub(crate) fn ask(
    place: &Place,
    config: &str,
    words: &(impl Words + ?Sized),
    variables: &[(&str, &str)],
) -> Answer {
    let file = place.folder.path().join("outbox.toml");
    std::fs::write(&file, config).unwrap();
    let mut all = words.words();
    all.extend(["--config", file.to_str().unwrap()]);
    let servers = [("DATABASE_URL", &*place.url), ("NATS_URL", &*place.nats)];
    run(&all, &[&servers, variables].concat())
}

pub(crate) fn start(place: &Place, config: &str) -> Program {
    Program::start(config, &[("DATABASE_URL", &place.url), ("NATS_URL", &place.nats)])
}

async fn migrated(place: &Place) {
    let mut program = start(place, &place.outbox("shop"));
    program.until_ready().await;
    program.terminate();
    program.end().await;
}

pub(crate) async fn until_on_stream(place: &Place, count: usize) {
    eventually("the messages on the stream", async || {
        place.on_stream().await.len() == count
    })
    .await;
}

pub(crate) async fn until_it_reads(program: &Program) {
    eventually("a relay that reads the log", async || {
        let metrics = program.get("/metrics").await.1;
        metrics.contains("outbox_log_reads{outbox=\"shop\"} 1")
    })
    .await;
}

fn was_written_down(operations: &Value, changed: &[u64]) {
    assert_eq!(
        operations.as_array().unwrap().len(),
        changed.len(),
        "{operations}"
    );
    for (n, changed) in changed.iter().enumerate() {
        assert_eq!(
            (&operations[n]["changed"], &operations[n]["is_finished"]),
            (&Value::from(*changed), &Value::Bool(true)),
            "{operations}"
        );
    }
}

fn set_up(ask: &impl Fn(&str) -> Answer) {
    let begun = ask("relay log init --yes --actor ann --reason INC-7").expect(0);
    assert!(
        begun.out.contains("next: outbox relay list") && begun.out.contains("advice: start the log relay"),
        "{begun:?}"
    );
    ask("relay log init --yes").expect(0);
    let operations = ask("audit --kind init-log -o json").expect(0).json();
    was_written_down(&operations, &[0, 1]);
    assert_eq!(
        (&operations[1]["actor"], &operations[1]["reason"]),
        (&"ann".into(), &"INC-7".into())
    );
}

#[tokio::test]
async fn log_is_created_read_by_two_programs_and_removed() {
    let Some(place) = Place::open(Kind::Logical).await else {
        return;
    };
    let config = reading(&place, &place.name);
    let ask = |words: &str| ask(&place, &config, words, &[]);
    let mut polling = start(&place, &place.outbox("shop"));
    polling.until_ready().await;
    place.record(2).await;
    until_on_stream(&place, 2).await;

    let preview = ask("relay log init").expect(0);
    for text in ["would create the log ", "the log is off, slot ", " (missing)"] {
        assert!(preview.out.contains(text), "{text}: {preview:?}");
    }
    assert!(preview.said.contains("nothing was changed"), "{preview:?}");
    assert!(ask("status -o json").json()[0]["log"].is_null());
    ask("relay log drop --yes").expect(5);
    set_up(&ask);

    let mut first = start(&place, &config);
    first.until_ready().await;
    until_it_reads(&first).await;
    polling.terminate();
    assert_eq!(polling.end().await.code(), Some(0), "{}", polling.log());
    place.record(3).await;
    until_on_stream(&place, 5).await;
    assert_eq!(
        place.count("outbox_messages", "status = 4").await,
        3,
        "nothing was written"
    );
    eventually("the partitions in the hands of the program", async || {
        place.count("outbox_leases", "owner IS NOT NULL").await == 64
    })
    .await;
    let status = ask("status").expect(0);
    assert!(status.out.contains("log         on, slot "), "{status:?}");
    assert!(status.out.contains("read by a relay; retains "), "{status:?}");

    let keys = ask("status -o json").expect(0).json();
    assert!(
        keys[0]["log"]["retained_bytes"].is_u64() && keys[0]["log"]["stored"].is_u64(),
        "{keys}"
    );

    let mut second = start(&place, &config);
    second.until_ready().await;
    first.terminate();
    assert_eq!(first.end().await.code(), Some(0), "{}", first.log());
    until_it_reads(&second).await;
    place.record(2).await;
    until_on_stream(&place, 7).await;

    let preview = ask("relay log drop").expect(0);
    assert!(preview.out.contains("reads the whole table"), "{preview:?}");
    let taken_down = ask("relay log drop --yes -o json").expect(0).json();
    assert_eq!(taken_down["exists"], Value::Bool(false));
    was_written_down(&ask("audit --kind drop-log -o json").expect(0).json(), &[1]);
    place.record(1).await;
    until_on_stream(&place, 8).await;
    second.terminate();
    assert_eq!(second.end().await.code(), Some(0), "{}", second.log());
    let expected = [1, 2, 1, 2, 3, 1, 2, 1].map(|n| format!("{{\"n\": {n}}}"));
    assert_eq!(place.on_stream().await, expected, "in order, and without copies");
    place.close().await;
}

#[tokio::test]
async fn missing_log_parts_have_next_steps() {
    for (kind, code, step) in [
        (
            Kind::Postgres,
            1,
            "set wal_level = logical and restart the server",
        ),
        (Kind::Logical, 1, "next: outbox migrate --config "),
        (Kind::MariaDb, 2, "only PostgreSQL's log can be read"),
        (Kind::Sqlite, 2, "only PostgreSQL's log can be read"),
    ] {
        let Some(place) = Place::open(kind).await else {
            continue;
        };
        for words in ["relay log init", "relay log init --yes"] {
            let answer = ask(&place, &place.outbox("shop"), words, &[]).expect(code);
            assert!(answer.said.contains(step), "{kind:?}: {answer:?}");
        }
        place.close().await;
    }
}

#[tokio::test]
async fn log_init_checks_rights_and_name_before_changes() {
    let Some(place) = Place::open(Kind::Logical).await else {
        return;
    };
    migrated(&place).await;
    place
        .execute(&format!("CREATE ROLE {0}_user LOGIN", place.name))
        .await;
    let url = place.url.replace("postgres@", &format!("{}_user@", place.name));
    let config = reading(&place, &place.name);
    let init = "relay log init --yes";
    let refused = ask(&place, &config, init, &[("DATABASE_LOG_URL", &url)]).expect(1);
    let step = format!("ALTER ROLE \"{}_user\" REPLICATION", place.name);
    assert!(refused.said.contains(&step), "{refused:?}");
    ask(&place, &config, "relay log drop", &[]).expect(5);

    ask(&place, &config, init, &[]).expect(0);
    let logged = ask(&place, &config, "list --status logged", &[]).expect(5);
    assert!(logged.said.contains("no message matches"), "{logged:?}");
    let other = reading(&place, &format!("{}b", place.name));
    let refused = ask(&place, &other, init, &[]).expect(1);
    let name = format!("already has a log named {};", place.name);
    assert!(refused.said.contains(&name), "{refused:?}");
    let status = ask(&place, &config, "status", &[]).expect(3);
    assert!(status.out.contains("no relay reads the log"), "{status:?}");
    ask(&place, &config, "relay log drop --yes", &[]).expect(0);
    place.execute(&format!("DROP ROLE {}_user", place.name)).await;
    place.close().await;
}

#[tokio::test]
async fn printed_log_relay_rights_are_minimal() {
    let Some(place) = Place::open(Kind::Logical).await else {
        return;
    };
    migrated(&place).await;
    let config = reading(&place, &place.name);
    ask(&place, &config, "relay log init --yes", &[]).expect(0);
    let file = config.replace("migrate = true\nwriters = true\n", "");
    let start_as = |url: &str| Program::start(&file, &[("DATABASE_URL", url), ("NATS_URL", &place.nats)]);

    let polling = Login::new(Kind::Logical, &place, &[Role::Relay]).await;
    let mut refused = start_as(&polling.url);
    eventually("the refusal of the table of the log", async || {
        refused.log().contains("permission denied for table outbox_log")
    })
    .await;
    refused.terminate();
    refused.end().await;

    let relay = Login::new(Kind::Logical, &place, &[Role::LogRelay]).await;
    let mut program = start_as(&relay.url);
    program.until_ready().await;
    until_it_reads(&program).await;
    place.record(3).await;
    until_on_stream(&place, 3).await;
    place
        .execute(&format!(
            "SELECT {}.outbox_record('order', 'later', 'placed', '{{}}', available_at => clock_timestamp() + interval '1 hour')",
            place.name
        ))
        .await;
    eventually("the adoption of a delayed message", async || {
        place.count("outbox_messages", "status IN (0, 3)").await == 1
    })
    .await;
    eventually("a position that is stored", async || {
        place
            .count(
                "outbox_log",
                "stored_at > now() - interval '1 minute' AND reading > 0",
            )
            .await
            == 1
    })
    .await;

    ask(&place, &config, "migrate --tables inbox --yes", &[]).expect(0);
    let viewer = Login::with(Kind::Logical, &place, &[Role::Viewer], &["--log"]).await;
    let seen = [("DATABASE_URL", &*viewer.url), ("DATABASE_LOG_URL", &*place.url)];
    let status = ask(&place, &config, "status", &seen);
    assert!(status.out.contains("read by a relay"), "{status:?}");
    program.terminate();
    assert_eq!(program.end().await.code(), Some(0), "{}", program.log());
    ask(&place, &config, "relay log drop --yes", &[]).expect(0);
    for login in [polling, relay, viewer] {
        login.close(Kind::Logical, &place).await;
    }
    place.close().await;
}

#[tokio::test]
async fn disabled_unsupported_or_renamed_log_is_a_finding() {
    let Some(place) = Place::open(Kind::Logical).await else {
        return;
    };
    let config = reading(&place, &place.name);
    migrated(&place).await;
    let wanted = ask(&place, &config, "doctor", &[]).expect(4);
    assert!(wanted.out.contains("next: outbox relay log init"), "{wanted:?}");
    let polls = ask(&place, &place.outbox("shop"), "doctor", &[]);
    assert!(!polls.out.contains("relay log init"), "{polls:?}");
    ask(&place, &config, "relay log init --yes", &[]).expect(0);
    let other = ask(
        &place,
        &reading(&place, &format!("{}b", place.name)),
        "status",
        &[],
    )
    .expect(3);
    assert!(other.out.contains("has a log named"), "{other:?}");
    ask(&place, &config, "relay log drop --yes", &[]).expect(0);
    place.close().await;
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    migrated(&place).await;
    let replica = ask(&place, &reading(&place, &place.name), "doctor", &[]).expect(4);
    assert!(replica.out.contains("wal_level is replica"), "{replica:?}");
    place.close().await;
}

#[tokio::test]
async fn logged_messages_without_log_relay_are_stuck() {
    let Some(place) = Place::open(Kind::Logical).await else {
        return;
    };
    migrated(&place).await;
    let config = reading(&place, &place.name);
    ask(&place, &config, "relay log init --yes", &[]).expect(0);
    place.record(3).await;
    let status = ask(&place, &config, "status", &[]).expect(4);
    assert!(
        status.out.contains("3 messages are possibly unpublished"),
        "{status:?}"
    );
    let json = ask(&place, &config, "status -o json", &[]).expect(4).json()[0]["log"].clone();
    assert_eq!(json["undecided"], 3);
    assert!(json["oldest_undecided_seconds"].is_f64(), "{json}");
    assert!(
        json["behind_bytes"].as_u64().is_some_and(|bytes| bytes > 0),
        "{json}"
    );

    let seen = |findings: &Value| -> Vec<String> {
        let findings = findings[0]["findings"].as_array().unwrap().iter();
        let of_log = findings.filter(|finding| finding["check"] == "log");
        of_log
            .map(|finding| finding["seen"].as_str().unwrap().to_owned())
            .collect()
    };
    let doctor = seen(&ask(&place, &config, "doctor -o json", &[]).expect(4).json());
    assert!(doctor[0].contains("no relay reads the log"), "{doctor:?}");
    assert!(doctor[1].contains("max_slot_wal_keep_size is -1"), "{doctor:?}");
    let publication = format!(
        "ALTER PUBLICATION {0}_log SET TABLE {0}.outbox_messages (id)",
        place.name
    );
    place.execute(&publication).await;
    let doctor = seen(&ask(&place, &config, "doctor -o json", &[]).expect(4).json());
    assert!(doctor[1].contains("does not publish the inserts"), "{doctor:?}");
    place.execute(&publication.replace(" (id)", "")).await;

    // Changing the default of column `status` simulates a restore of `outbox_messages` without the
    // other tables.
    place
        .execute(&format!(
            "ALTER TABLE {}.outbox_messages ALTER COLUMN status SET DEFAULT 0",
            place.name
        ))
        .await;
    ask(&place, &config, "relay log init --yes", &[]).expect(0);
    place.record(1).await;
    assert_eq!(place.count("outbox_messages", "status = 4").await, 4);
    ask(&place, &config, "relay log drop --yes", &[]).expect(0);
    place.close().await;
}

/// If the slot or publication of the log is gone, no relay publishes the logged messages. `status`
/// must report the messages with the repair.
#[tokio::test]
async fn logged_messages_without_log_become_pending() {
    for gone in [
        "DROP TABLE outbox_log",
        "DROP TABLE outbox_log; ALTER TABLE outbox_messages ALTER COLUMN status SET DEFAULT 0",
    ] {
        let Some(place) = Place::open(Kind::Logical).await else {
            return;
        };
        let config = reading(&place, &place.name);
        let polling = place.outbox("shop");
        migrated(&place).await;
        ask(&place, &config, "relay log init --yes", &[]).expect(0);
        place.record(2).await;
        let gone = gone.replace("TABLE ", &format!("TABLE {}.", place.name));
        place.execute(&gone).await;
        let slot = format!("SELECT pg_drop_replication_slot('{}_log')", place.name);
        place.execute(&slot).await;
        for words in ["status", "doctor"] {
            let answer = ask(&place, &config, words, &[]).expect(4);
            assert!(answer.out.contains("no relay publishes them"), "{answer:?}");
            assert!(answer.out.contains("outbox relay log drop"), "{answer:?}");
        }
        ask(&place, &config, "relay log drop", &[]).expect(0);
        ask(&place, &config, "relay log drop --yes", &[]).expect(0);
        assert_eq!(place.count("outbox_messages", "status = 0").await, 2, "{gone}");
        let status = ask(&place, &polling, "status", &[]);
        assert!(!status.out.contains("no relay publishes them"), "{status:?}");
        ask(&place, &config, "relay log drop --yes", &[]).expect(5);
        place.close().await;
    }
}

/// Without the check for the log's tables and slot, the relay would wait forever without an error.
#[tokio::test]
async fn relay_without_log_setup_fails_with_next_step() {
    let Some(place) = Place::open(Kind::Logical).await else {
        return;
    };
    let mut program = start(&place, &reading(&place, &place.name));
    let (code, log) = program.failure().await;
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("`outbox relay log init --config "), "{log}");
    place.close().await;
}
