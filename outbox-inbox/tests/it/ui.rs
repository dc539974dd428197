//! What users see when they write a handler wrongly, and that right handlers compile without a warning.
//!
//! `tests/ui/README.md` says how to bless new messages.

use std::process::Command;

/// Messages contain the compiler's own words, so they are compared on the toolchain that the workspace is built with.
const PINNED: &str = "rustc 1.95.";

#[test]
fn idempotent_handler() {
    let version = Command::new("rustc")
        .arg("--version")
        .output()
        .expect("rustc runs")
        .stdout;
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/idempotent_handler/pass/*.rs");
    if version.starts_with(PINNED.as_bytes()) {
        cases.compile_fail("tests/ui/idempotent_handler/*.rs");
    } else {
        let version = String::from_utf8_lossy(&version);
        println!("skipped: messages are compared with {PINNED}*, this is {version}");
    }
}
