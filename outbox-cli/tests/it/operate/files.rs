//! Files of databases that are not there, and files that name several outboxes.

use sea_orm::{ConnectOptions, ConnectionTrait as _, Database};

use super::answer::{Answer, run};

/// A typing error in the address must not leave an empty database behind, which the next command would take for the right one.
#[test]
fn no_command_but_migrate_makes_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (config, database) = (
        folder.path().join("outbox.toml"),
        folder.path().join("missing.db"),
    );
    std::fs::write(
        &config,
        "[[outbox]]\nname = \"shop\"\n[outbox.stream]\nname = \"SHOP\"\n",
    )
    .unwrap();
    let address = format!("sqlite://{}?mode=rwc", database.display());
    let variables = [
        ("DATABASE_URL", address.as_str()),
        ("NATS_URL", "nats://127.0.0.1:1"),
    ];
    for words in [
        &["status"][..],
        &["relay", "list"],
        &["list"],
        &["audit"],
        &["why", "order/1"],
        &["doctor"],
        &["doctor", "--viewer"],
        &["retry", "--all"],
        &["pause", "--yes"],
    ] {
        let words = [words, &["--timeout", "5s", "--config", config.to_str().unwrap()]].concat();
        let answer = run(&words, &variables);
        assert!(answer.says("cannot be opened"), "{words:?}: {answer:?}");
        assert!(answer.says("outbox migrate"), "{words:?}: {answer:?}");
        assert!(!database.exists(), "{words:?}");
    }
    let words = ["migrate", "--yes", "--config", config.to_str().unwrap()];
    run(&words, &variables).expect(0);
    assert!(database.exists());
}

/// The checks that have found something.
fn found(answer: &Answer) -> Vec<String> {
    let json = answer.json();
    let findings = json[0]["findings"].as_array().unwrap();
    let check = |finding: &serde_json::Value| finding["check"].as_str().unwrap().to_owned();
    findings.iter().map(check).collect()
}

/// As with a server that is down: NATS is asked all the same, and so are the other outboxes.
#[test]
fn a_file_that_cannot_be_opened_is_a_finding_and_the_rest_is_examined() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("outbox.toml");
    let outbox = |name: &str| {
        format!("[[outbox]]\nname = \"{name}\"\nprefix = \"{name}_\"\n[outbox.stream]\nname = \"SHOP\"\n")
    };
    std::fs::write(&config, ["a", "b"].map(outbox).concat()).unwrap();
    let config = config.to_str().unwrap();
    let (missing, text) = (folder.path().join("missing.db"), folder.path().join("text.db"));
    std::fs::write(&text, "no database ".repeat(500)).unwrap();
    let fine = format!("sqlite://{}?mode=rwc", folder.path().join("outbox.db").display());
    for (path, said) in [
        (missing.as_path(), "outbox migrate"),
        (text.as_path(), "the file is no database of SQLite"),
        (folder.path(), "is a folder"),
    ] {
        let address = format!("sqlite://{}", path.display());
        let variables = [
            ("OUTBOX_A_DATABASE_URL", address.as_str()),
            ("OUTBOX_B_DATABASE_URL", fine.as_str()),
            ("NATS_URL", "nats://127.0.0.1:1"),
        ];
        let of_b = ["migrate", "--yes", "--config", config, "--outbox", "b"];
        run(&of_b, &variables).expect(0);
        for more in [None, Some("--viewer")] {
            let mut words = vec!["doctor", "-o", "json", "--config", config];
            words.extend(more);
            let answer = run(&words, &variables).expect(4);
            assert_eq!(found(&answer), ["database", "nats"], "{words:?}: {answer:?}");
            assert!(answer.out.contains(said), "{said}: {answer:?}");
            let json = answer.json();
            assert_eq!(json[1]["outbox"], "b");
            let of_b = json[1]["findings"].as_array().unwrap();
            assert!(
                of_b.iter().all(|finding| finding["check"] != "database"),
                "{answer:?}"
            );
        }
        let answer = run(&["doctor", "--config", config], &variables).expect(4);
        for told in [
            "not checked: database-version, tables, rights, ",
            ", stream, duplicate-window, ",
            " checks were not made\n",
        ] {
            assert!(answer.out.contains(told), "{told}: {answer:?}");
        }
    }
    assert!(!missing.exists());
}

/// The text of the driver alone would not say what is in the way.
#[tokio::test]
async fn a_file_that_another_process_holds_locked_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("outbox.toml");
    std::fs::write(&config, "[[outbox]]\n[outbox.stream]\nname = \"SHOP\"\n").unwrap();
    let file = folder.path().join("outbox.db");
    let address = format!("sqlite://{}?mode=rwc", file.display());
    let variables = [
        ("DATABASE_URL", address.as_str()),
        ("NATS_URL", "nats://127.0.0.1:1"),
    ];
    let config = config.to_str().unwrap();
    run(&["migrate", "--yes", "--config", config], &variables).expect(0);
    let mut options = ConnectOptions::new(&address);
    options.max_connections(1).sqlx_logging(false);
    let holder = Database::connect(options).await.unwrap();
    // Whoever reads waits for the one, and whoever writes for both. `doctor` tries whether a relay could write.
    let asked: [(&str, &[&str], i32); 4] = [
        ("BEGIN EXCLUSIVE", &["list"], 1),
        ("BEGIN EXCLUSIVE", &["doctor", "--viewer", "-o", "json"], 4),
        ("BEGIN EXCLUSIVE", &["doctor", "-o", "json"], 4),
        ("BEGIN IMMEDIATE", &["doctor", "-o", "json"], 4),
    ];
    for (lock, words, code) in asked {
        holder.execute_unprepared(lock).await.unwrap();
        let words = [words, &["--timeout", "5s", "--config", config]].concat();
        let answer = run(&words, &variables).expect(code);
        assert!(
            answer.says("another process holds the file locked"),
            "{words:?}: {answer:?}"
        );
        let command = format!("fuser {}", file.display());
        assert!(answer.says(&command), "{words:?}: {answer:?}");
        if words[0] == "doctor" {
            assert_eq!(found(&answer), ["database", "nats"], "{words:?}");
        }
        holder.execute_unprepared("ROLLBACK").await.unwrap();
    }
    holder.close().await.unwrap();
}

/// What is said of one of several outboxes can be copied as it stands.
#[test]
fn commands_about_one_of_several_outboxes_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("outbox.toml");
    let outbox = |name: &str| {
        format!("[[outbox]]\nname = \"{name}\"\nprefix = \"{name}_\"\n[outbox.stream]\nname = \"SHOP\"\n")
    };
    std::fs::write(&config, ["a", "b"].map(outbox).concat()).unwrap();
    let file = format!("sqlite://{}?mode=rwc", folder.path().join("outbox.db").display());
    let variables = [
        ("DATABASE_URL", file.as_str()),
        ("NATS_URL", "nats://127.0.0.1:1"),
    ];
    let config = config.to_str().unwrap();
    for name in ["a", "b"] {
        let of_one = |words: &[&str]| {
            let words = [words, &["--yes", "--config", config, "--outbox", name]].concat();
            run(&words, &variables).expect(0);
        };
        of_one(&["migrate"]);
        of_one(&["pause", "--aggregate-type", "order", "--reason", "overrun"]);
    }
    for words in [&["status"][..], &["doctor", "--pause", "0s"]] {
        let words = [words, &["--timeout", "5s", "--config", config]].concat();
        let answer = run(&words, &variables);
        for name in ["a", "b"] {
            let named = format!("order --outbox {name} --config {config}\n");
            assert!(answer.out.contains(&named), "{named}: {answer:?}");
        }
    }
}
