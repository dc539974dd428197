//! Compiler messages for wrong uses of `DomainEvent`. Correct uses compile without a warning.
//!
//! `tests/ui/README.md` says how to bless new messages.

use outbox_core::testing::compiler_is_pinned;

#[test]
fn domain_event() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/domain_event/pass/*.rs");
    if compiler_is_pinned() {
        cases.compile_fail("tests/ui/domain_event/*.rs");
    }
}
