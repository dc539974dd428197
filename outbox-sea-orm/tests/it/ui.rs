//! Right uses compile, and wrong uses get the checked-in message of the compiler.

use outbox_core::testing::compiler_is_pinned;

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    if compiler_is_pinned() {
        cases.compile_fail("tests/ui/*.rs");
    }
}
