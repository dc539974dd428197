//! Incorrect events, saves and handlers do not compile, and get the checked-in messages. The correct ones in `pass/` are programs of their own, see the
//! `Cargo.toml` of each crate.
//!
//! All are compiled here, because the dependencies are checked once for each crate that has such tests, and this crate depends on the others.
//! `tests/ui/README.md` says how to bless new messages.

use std::sync::{Mutex, MutexGuard, PoisonError};

use outbox_testing::{programs_refused_in_any_words, programs_that_do_not_compile};

const WRONG_USES: &str = "compile_fail::wrong_uses";

/// The compiler runs in processes of their own, which share a folder. Each of them takes over the lock of `trybuild` from one that stands still for more than
/// a second, and then they would spoil each other's programs. So they run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[track_caller]
fn check(test: &str, folder: &str) {
    let _alone = alone();
    programs_that_do_not_compile(test, folder, |programs| {
        trybuild::TestCases::new().compile_fail(programs);
    });
}

#[test]
fn domain_event() {
    check("compile_fail::domain_event", "tests/ui/domain_event");
}

#[test]
fn wrong_uses() {
    check(WRONG_USES, "tests/ui/save");
}

#[test]
fn idempotent_handler() {
    check("compile_fail::idempotent_handler", "tests/ui/idempotent_handler");
}

#[test]
fn a_compiler_with_words_of_its_own_refuses_them_too() {
    let _alone = alone();
    programs_refused_in_any_words(WRONG_USES, &["tests/ui/save/record_on_pool.rs"]).unwrap();
}

/// Where messages are not compared, nothing but the success of the compiler gives it away.
#[test]
fn a_program_that_compiles_is_found_where_messages_are_not_compared() {
    let _alone = alone();
    let output = programs_refused_in_any_words(WRONG_USES, &["tests/compiles/nothing_wrong.rs"]);
    let output = output.unwrap_err();
    assert!(
        output.contains("Expected test case to fail to compile"),
        "{output}"
    );
}
