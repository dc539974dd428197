//! What users see when they write a handler wrongly, and that right handlers compile without a warning.
//!
//! `tests/ui/README.md` says how to bless new messages.

use outbox_core::testing::compiler_is_pinned;

#[test]
fn idempotent_handler() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/idempotent_handler/pass/*.rs");
    if compiler_is_pinned() {
        cases.compile_fail("tests/ui/idempotent_handler/*.rs");
    }
}
