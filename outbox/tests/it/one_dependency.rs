//! Tests of the macros in users' crates: with this crate, with this crate under another name, and
//! with the single crates.
//!
//! This package depends on the single crates, so the test writes another workspace and runs cargo
//! check on it, with the same dependency versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use outbox::testing::without_package;

const BODY: &str = r#"
#[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
pub struct OrderPlaced {
    #[domain_event(aggregate_id)]
    pub order_id: u64,
    #[domain_event(dedup_key)]
    pub number: String,
}

#[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "cart", unsequenced)]
pub enum Cart {
    #[domain_event(name = "opened")]
    Opened(#[domain_event(aggregate_id)] u64),
    #[domain_event(name = "closed", version = 2, subject = "audit.carts")]
    Closed(#[domain_event(aggregate_id)] u64),
}

#[idempotent_handler(consumer = "inventory", strategy = sequence(gap = "30s"), batch = 10)]
pub async fn reserve(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    drop((event, tx));
    Ok(())
}

#[idempotent_handler(
    consumer = "billing", strategy = key(number), order = none, attempts = 3,
    backoff = "1s..5m", timeout = "5s"
)]
pub async fn charge(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    drop(event);
    Ok(())
}
"#;

const WORKSPACE: &str = r#"
[workspace]
resolver = "3"
members = ["alone", "renamed", "inherited", "single"]

[workspace.dependencies]
inherited_ob = { package = "outbox", path = "{root}/outbox", features = ["sqlite"] }

"#;

const ALONE: &str = r#"
outbox = { path = "{root}/outbox", features = ["sqlite"] }
"#;

const RENAMED: &str = r#"
ob = { package = "outbox", path = "{root}/outbox", features = ["sqlite"] }
"#;

const INHERITED: &str = r#"
inherited_ob.workspace = true
"#;

const SINGLE: &str = r#"
outbox-engine = { path = "{root}/outbox-core" }
consume = { package = "outbox-inbox", path = "{root}/outbox-inbox", features = ["sqlite"] }
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

fn folders() -> (PathBuf, PathBuf) {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    (
        scratch.parent().unwrap().to_owned(),
        scratch.join("one_dependency"),
    )
}

fn profiles() -> String {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, profiles) = manifest.split_once("[profile.dev]").unwrap();
    let (profiles, _) = profiles.split_once("[profile.release]").unwrap();
    format!("[profile.dev]{profiles}")
}

/// Removes the variables of the outer cargo, so that this test and a shell can share a target
/// folder.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_package(&mut cargo);
    cargo
}

fn write(path: &Path, text: &str) {
    let text = text.replace("{root}", &root().display().to_string());
    // An unchanged file keeps its time, so cargo does not build it again.
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return;
    }
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn write_crate(folder: &Path, name: &str, dependencies: &str, imports: &str) {
    let manifest = format!(
        "[package]\nname = \"{name}\"\nedition = \"2024\"\n\n[dependencies]\n\
         serde = {{ version = \"1\", features = [\"derive\"] }}{dependencies}"
    );
    write(&folder.join(name).join("Cargo.toml"), &manifest);
    write(
        &folder.join(name).join("src/lib.rs"),
        &format!("#![deny(warnings)]\n{imports}\n{BODY}"),
    );
}

#[test]
fn macros_find_their_crates_in_any_dependency_layout() {
    let (target, folder) = folders();
    write(&folder.join("Cargo.toml"), &format!("{WORKSPACE}{}", profiles()));
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    write_crate(&folder, "alone", ALONE, "use outbox::prelude::*;");
    write_crate(&folder, "renamed", RENAMED, "use ob::prelude::*;");
    write_crate(&folder, "inherited", INHERITED, "use inherited_ob::prelude::*;");
    let imports =
        "use consume::{Event, HandlerError, Tx, idempotent_handler};\nuse outbox_core::DomainEvent;";
    write_crate(&folder, "single", SINGLE, imports);

    let output = cargo()
        .args(["check", "--offline", "--workspace", "--quiet"])
        .current_dir(&folder)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
