//! The surroundings of tests that call the compiler.
//!
//! Invariant: on every compiler the programs are compiled and must be refused; the messages are compared on the pinned compiler only. Not here: the
//! compilation itself, which is the caller's (`trybuild`).

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::environment::compiler_is_pinned;

/// In the second process: the pattern of the programs.
const PROGRAMS: &str = "OUTBOX_TEST_PROGRAMS";

/// The harness says it if the test was found and has passed. Of a test that does not exist it says that none has failed.
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
    let outcome = if compiler_is_pinned() {
        run_again(test, &[(PROGRAMS, OsStr::new(&format!("{folder}/*.rs")))])
    } else {
        programs_refused_in_any_words(test, &programs_in(folder))
    };
    if let Err(output) = outcome {
        panic!("{output}");
    }
}

/// Compiles copies of these programs and does not compare the messages, as with a compiler that is not the pinned one. `test` is the name of a test that calls
/// [`programs_that_do_not_compile`]; it is run in a process of its own, with these programs and not with those of its folder.
///
/// # Errors
///
/// The output of that process, if one of the programs compiles.
///
/// # Panics
///
/// If a program cannot be copied.
#[doc(hidden)]
pub fn programs_refused_in_any_words(test: &str, programs: &[impl AsRef<Path>]) -> Result<(), String> {
    let copies = Copies::of(programs);
    let programs = copies.0.join("*.rs");
    // Messages that are not there are written instead of compared.
    let overwrite = ("TRYBUILD", OsStr::new("overwrite"));
    run_again(test, &[overwrite, (PROGRAMS, programs.as_os_str())])
}

/// Runs a test of this program in a process of its own. An error is its output.
fn run_again(test: &str, variables: &[(&str, &OsStr)]) -> Result<(), String> {
    let mut again = Command::new(env::current_exe().expect("a test program knows its path"));
    again.args([test, "--exact", "--nocapture"]);
    without_package(&mut again);
    again.envs(variables.iter().copied());
    let output = again.output().expect("a test program can be run again");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() && stdout.contains(PASSED) {
        return Ok(());
    }
    Err(format!("{stdout}\n{stderr}"))
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

fn programs_in(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder of the programs can be read");
    entries
        .map(|entry| entry.expect("the folder of the programs can be read").path())
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

/// Programs without their messages, in a temporary folder that is removed at the end.
struct Copies(PathBuf);

impl Copies {
    fn of(programs: &[impl AsRef<Path>]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("outbox-programs-{}-{number}", process::id());
        let copies = Self(env::temp_dir().join(name));
        fs::create_dir_all(&copies.0).expect("a temporary folder can be made");
        for program in programs {
            let name = program.as_ref().file_name().expect("a program has a name");
            fs::copy(program, copies.0.join(name)).expect("a program can be copied");
        }
        copies
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its name is a text, which nobody changes when the test is renamed.
    #[test]
    fn a_test_that_is_not_there_is_not_taken_for_one_that_passed() {
        let output = run_again("testing::compile_fail::no_such_test", &[]).unwrap_err();
        assert!(output.contains("0 passed"), "{output}");
    }
}
