//! Wrong uses do not compile, and get the checked-in messages. The right ones in `pass/` are programs of their own, see `Cargo.toml`.
//!
//! `tests/ui/README.md` says how to bless new messages.

use outbox_core::testing::{programs_refused_in_any_words, programs_that_do_not_compile};

const WRONG_USES: &str = "compile_fail::wrong_uses";

#[test]
fn wrong_uses() {
    programs_that_do_not_compile(WRONG_USES, "tests/ui", |programs| {
        trybuild::TestCases::new().compile_fail(programs);
    });
}

#[test]
fn a_compiler_with_words_of_its_own_refuses_them_too() {
    programs_refused_in_any_words(WRONG_USES, &["tests/ui/record_on_pool.rs"]).unwrap();
}

/// Where messages are not compared, nothing but the success of the compiler gives it away.
#[test]
fn a_program_that_compiles_is_found_where_messages_are_not_compared() {
    let output = programs_refused_in_any_words(WRONG_USES, &["tests/compiles/nothing_wrong.rs"]);
    let output = output.unwrap_err();
    assert!(
        output.contains("Expected test case to fail to compile"),
        "{output}"
    );
}
