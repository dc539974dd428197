//! Missing SQLite files, and configurations with several outboxes.

use super::answer::run;

/// A misspelt file address must not create an empty database.
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
        "status",
        "relay list",
        "list",
        "audit",
        "why order/1",
        "doctor",
        "doctor --viewer",
        "retry --all",
        "pause --yes",
    ] {
        let words = format!("{words} --timeout 5s --config {}", config.display());
        let answer = run(&words, &variables);
        assert!(matches!(answer.code, Some(1 | 4)), "{words}: {answer:?}");
        assert!(!database.exists(), "{words}");
    }
    run(
        &format!("migrate --yes --config {}", config.display()),
        &variables,
    )
    .expect(0);
    assert!(database.exists());
}

#[test]
fn suggested_commands_select_the_outbox() {
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
        for words in ["migrate", "pause --aggregate-type order --reason overrun"] {
            let words = format!("{words} --yes --config {config} --outbox {name}");
            run(&words, &variables).expect(0);
        }
    }
    let answer = run(&format!("status --timeout 5s --config {config}"), &variables);
    for name in ["a", "b"] {
        let named = format!("order --outbox {name} --config {config}\n");
        assert!(answer.out.contains(&named), "{named}: {answer:?}");
    }
}
