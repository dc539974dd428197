//! The surroundings of tests that call the compiler.
//!
//! Invariant: on every compiler the programs are compiled and must be refused; the messages are compared on the pinned compiler only. Not here: the
//! compilation itself, which is the caller's (`trybuild`).

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::environment::compiler_is_pinned;

/// In the second process: the pattern of the programs.
const PROGRAMS: &str = "OUTBOX_TEST_PROGRAMS";

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
    let mut again = Command::new(env::current_exe().expect("a test program knows its path"));
    again.args([test, "--exact", "--nocapture"]);
    without_package(&mut again);
    let copies = (!compiler_is_pinned()).then(|| Copies::of(folder));
    if let Some(copies) = &copies {
        // Messages that are not there are written instead of compared.
        again.env("TRYBUILD", "overwrite");
        again.env(PROGRAMS, copies.0.join("*.rs"));
    } else {
        again.env(PROGRAMS, format!("{folder}/*.rs"));
    }
    let output = again.output().expect("a test program can be run again");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
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

/// The programs of a folder without their messages, in a temporary folder that is removed at the end.
struct Copies(PathBuf);

impl Copies {
    fn of(folder: &str) -> Self {
        let copies = Self(env::temp_dir().join(format!("outbox-programs-{}", std::process::id())));
        fs::create_dir_all(&copies.0).expect("a temporary folder can be made");
        for entry in fs::read_dir(folder).expect("the folder of the programs can be read") {
            let path = entry.expect("the folder of the programs can be read").path();
            if let Some(name) = path
                .file_name()
                .filter(|_| path.extension().is_some_and(|end| end == "rs"))
            {
                fs::copy(&path, copies.0.join(name)).expect("a program can be copied");
            }
        }
        copies
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
