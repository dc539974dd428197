//! Commands and dashboard inside another program: `examples/mounted.rs`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::operate::plant::Planted;
use crate::operate::serve::Served;
use crate::place::Kind;

/// `cargo test` builds the example next to `outbox`.
fn mounted() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_outbox"));
    let mounted = program.with_file_name("examples").join("mounted");
    assert!(
        mounted.exists(),
        "there is no {}; run the tests of the whole workspace, or first `cargo build --package outbox-cli --examples`",
        mounted.display()
    );
    mounted
}

fn run(planted: &Planted, program: &Path, words: &[&str]) -> Output {
    let place = &planted.place;
    let file = place.folder.path().join("mounted.toml");
    std::fs::write(&file, place.outbox("shop")).unwrap();
    Command::new(program)
        .args(words)
        .arg("--config")
        .arg(&file)
        .env_clear()
        .envs([("DATABASE_URL", &place.url), ("NATS_URL", &place.nats)])
        .output()
        .unwrap()
}

fn show(planted: &Planted, program: &Path, words: &[&str]) -> String {
    let output = run(planted, program, words);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[tokio::test]
async fn a_program_of_ones_own_knows_the_events_that_are_linked_into_it() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let id = planted.placed("1").await.to_string();
    let program = Path::new(env!("CARGO_BIN_EXE_outbox"));
    let words = ["show", &id, "--payload", "-o", "json"];
    let unknown = show(&planted, program, &words);
    assert!(!unknown.contains("order_id"), "{unknown}");
    let mut words = words.to_vec();
    words.insert(0, "outbox");
    let known = show(&planted, &mounted(), &words);
    assert!(known.contains("order_id") && known.contains("***"), "{known}");
    assert!(!known.contains("ada@example.org"), "{known}");
    planted.close().await;
}

fn serve(planted: &Planted, words: &[&str]) -> Served {
    let place = &planted.place;
    let file = place.folder.path().join("mounted.toml");
    std::fs::write(&file, place.outbox("shop")).unwrap();
    let mut command = Command::new(mounted());
    command
        .args(words)
        .args(["--address", "127.0.0.1:0", "--config"])
        .arg(&file)
        .env_clear()
        .envs([("DATABASE_URL", &place.url), ("NATS_URL", &place.nats)]);
    Served::launch(command)
}

/// A suggested command must call the program that printed it.
#[tokio::test]
async fn a_program_of_ones_own_is_named_in_the_commands_that_come_next() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    planted.publish().await;
    let program = mounted();
    let file = planted.place.folder.path().join("mounted.toml");
    let output = run(&planted, &program, &["outbox", "timeline", "order/nobody"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let next = format!(
        "next: mounted outbox why order/nobody --config {}",
        file.display()
    );
    assert!(said.contains(&next), "{next}: {said}");
    for (words, path) in [(&["outbox", "serve"][..], "/"), (&["pages"], "/outbox")] {
        let (_, page) = serve(&planted, words).get(path, &[]).await;
        assert!(page.contains("<code>mounted outbox relay list</code>"), "{page}");
    }
    planted.close().await;
}

/// The embedded dashboard has the same stream information as `outbox serve`.
#[tokio::test]
async fn a_dashboard_in_ones_own_application_knows_the_stream() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    planted.placed("1").await;
    planted.publish().await;
    let served = serve(&planted, &["pages"]);
    let (_, timeline) = served.get("/outbox/aggregate?of=order/1", &[]).await;
    assert!(
        timeline.contains("stream sequence <span class=\"number\">1</span>"),
        "{timeline}"
    );
    let (status, page) = served.get("/outbox/messages", &[]).await;
    assert!(status == 200 && page.contains("/outbox/"), "{page}");
    planted.close().await;
}
