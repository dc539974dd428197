//! The surroundings of tests that call the compiler.
//!
//! Invariant: the messages are compared on the pinned compiler only; with another one the test is skipped. Not here: the compilation itself, which is the
//! caller's (`trybuild`).

use std::env;
use std::process::Command;

use super::environment::compiler_is_pinned;

/// In the second process: the pattern of the programs.
const PROGRAMS: &str = "OUTBOX_TEST_PROGRAMS";

/// The harness prints this if it found the test and the test passed. If there is no such test, no test has failed.
const PASSED: &str = "test result: ok. 1 passed";

/// Runs `test`, which calls this function, once more in a process without the variables that cargo sets for a package. There `compile_fail` is called
/// with a pattern that matches the programs in `folder`.
///
/// # Panics
///
/// If `compile_fail` panics, with the output of that process.
#[doc(hidden)]
pub fn programs_that_do_not_compile(test: &str, folder: &str, compile_fail: impl FnOnce(&str)) {
    if let Ok(programs) = env::var(PROGRAMS) {
        return compile_fail(&programs);
    }
    if !compiler_is_pinned() {
        return;
    }
    let mut again = Command::new(env::current_exe().expect("a test program knows its path"));
    again.args([test, "--exact", "--nocapture"]);
    without_package(&mut again);
    again.env(PROGRAMS, format!("{folder}/*.rs"));
    let output = again.output().expect("a test program can be run again");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let passed = output.status.success() && stdout.contains(PASSED);
    assert!(passed, "{stdout}\n{stderr}");
}

/// Takes the variables that cargo sets for a package from a command that calls cargo.
///
/// Build scripts look at these variables. With them, `ring` and all that depends on it would be built again: by this call, and by the next one without them.
#[doc(hidden)]
pub fn without_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let of_package = name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"));
        if of_package {
            command.env_remove(name);
        }
    }
}
