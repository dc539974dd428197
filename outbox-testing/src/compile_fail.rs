//! The environment of tests that call the compiler. Compiler messages are compared only on the
//! pinned compiler.

use std::env;
use std::process::Command;

use super::environment::compiler_is_pinned;

const PROGRAMS: &str = "OUTBOX_TEST_PROGRAMS";

/// If the filter matches no test, cargo exits with success but does not print this line.
const PASSED: &str = "test result: ok. 1 passed";

/// Runs `test` in a child process without cargo's package variables. The child calls `compile_fail`
/// with a pattern for `folder`.
///
/// # Panics
///
/// Panics if `compile_fail` panics, with the output of the child.
#[doc(hidden)]
pub fn programs_that_do_not_compile(test: &str, folder: &str, compile_fail: impl FnOnce(&str)) {
    if let Ok(programs) = env::var(PROGRAMS) {
        return compile_fail(&programs);
    }
    if !compiler_is_pinned() {
        return;
    }
    let mut again = Command::new(env::current_exe().expect("the path of the test program is available"));
    again.args([test, "--exact", "--nocapture"]);
    without_package(&mut again);
    again.env(PROGRAMS, format!("{folder}/*.rs"));
    let output = again.output().expect("a test program can be run again");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let passed = output.status.success() && stdout.contains(PASSED);
    assert!(passed, "{stdout}\n{stderr}");
}

/// Removes cargo's package variables. With them, cargo would rebuild `ring` and its dependents.
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
