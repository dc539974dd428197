//! Wrong uses do not compile, and get the checked-in messages. The right ones in `pass/` are programs of their own, see `Cargo.toml`.
//!
//! `tests/ui/README.md` says how to bless new messages.

use outbox_core::testing::programs_that_do_not_compile;

#[test]
fn wrong_uses() {
    programs_that_do_not_compile("compile_fail::wrong_uses", "tests/ui", |programs| {
        trybuild::TestCases::new().compile_fail(programs);
    });
}
