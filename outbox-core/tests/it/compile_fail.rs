//! Wrong uses of `DomainEvent` do not compile, and get the checked-in messages. The right ones in `pass/` are programs of their own, see `Cargo.toml`.
//!
//! `tests/ui/README.md` says how to bless new messages.

use outbox_core::testing::programs_that_do_not_compile;

#[test]
fn domain_event() {
    programs_that_do_not_compile(
        "compile_fail::domain_event",
        "tests/ui/domain_event",
        |programs| {
            trybuild::TestCases::new().compile_fail(programs);
        },
    );
}
