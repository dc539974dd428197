//! Compiler messages for incorrect handlers, and correct handlers that compile without a warning.
//!
//! `tests/ui/README.md` explains how to bless new messages.

use outbox_core::testing::compiler_is_pinned;

#[test]
fn idempotent_handler() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/idempotent_handler/pass/*.rs");
    if compiler_is_pinned() {
        cases.compile_fail("tests/ui/idempotent_handler/*.rs");
    }
}
