//! Incorrect handlers do not compile, and get the checked-in messages. The correct ones in `pass/` are programs of their own, see `Cargo.toml`.
//!
//! `tests/ui/README.md` says how to bless new messages.

use outbox_core::testing::programs_that_do_not_compile;

#[test]
fn idempotent_handler() {
    programs_that_do_not_compile(
        "compile_fail::idempotent_handler",
        "tests/ui/idempotent_handler",
        |programs| {
            trybuild::TestCases::new().compile_fail(programs);
        },
    );
}
