//! Incorrect events, saves and handlers do not compile, with the checked-in messages.
//! `tests/ui/README.md` explains how to bless new messages.

use std::sync::{Mutex, MutexGuard, PoisonError};

use outbox_testing::programs_that_do_not_compile;

/// Lets one test run at a time: a process takes over the lock of `trybuild` after one second
/// without progress, and would corrupt the programs of the other test.
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
    check("compile_fail::wrong_uses", "tests/ui/save");
}

#[test]
fn idempotent_handler() {
    check("compile_fail::idempotent_handler", "tests/ui/idempotent_handler");
}
