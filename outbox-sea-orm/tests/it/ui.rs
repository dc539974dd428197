//! What the compiler says to wrong uses, and that right ones compile.

use outbox_core::testing::compiler_is_pinned;

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    if compiler_is_pinned() {
        cases.compile_fail("tests/ui/*.rs");
    }
}
