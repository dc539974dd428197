//! Incorrect events, saves and handlers do not compile, and get the checked-in messages. The correct ones in `pass/` are programs of their own, see the
//! `Cargo.toml` of each crate.
//!
//! All are compiled here, because the dependencies are checked once for each crate that has such tests, and this crate depends on the others.
//! `tests/ui/README.md` says how to bless new messages.

use std::sync::{Mutex, MutexGuard, PoisonError};

use outbox_testing::programs_that_do_not_compile;

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
    check("compile_fail::wrong_uses", "tests/ui/save");
}

#[test]
fn idempotent_handler() {
    check("compile_fail::idempotent_handler", "tests/ui/idempotent_handler");
}
