//! The rules of the attribute, one by one. How errors look, and where they point, is tested in
//! `outbox-inbox/tests/ui`.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};

use super::attr::Keys;
use super::model::Declaration;
use super::{attribute, validate};
use crate::diagnostics::Diagnostics;

/// Compares what is wrong with a function, without the advice.
#[track_caller]
fn check(arguments: TokenStream, item: TokenStream, expected: &[&str]) {
    let expansion = attribute(arguments, item.clone());
    let messages: Vec<String> = expansion.errors.iter().map(ToString::to_string).collect();
    let wrong: Vec<&str> = messages
        .iter()
        .filter_map(|message| message.lines().next())
        .collect();
    assert_eq!(wrong, expected);
    for message in &messages {
        assert_eq!(
            message.matches("\nnote: ").count(),
            1,
            "one thing to type per mistake: {message}"
        );
    }
    assert!(
        expansion.tokens.to_string().starts_with(&item.to_string()),
        "the function is always kept"
    );
}

#[track_caller]
fn check_function(item: TokenStream, expected: &[&str]) {
    check(quote!(consumer = "inventory"), item, expected);
}

#[track_caller]
fn check_keys(arguments: TokenStream, expected: &[&str]) {
    check(
        arguments,
        quote!(
            async fn reserve(event: Event<Placed>) -> Result<(), HandlerError> {}
        ),
        expected,
    );
}

#[test]
fn a_handler_is_read_up_to_its_body() {
    let diagnostics = Diagnostics::new();
    let keys = Keys::read(quote!(consumer = "inventory", crate = crate::inbox), &diagnostics);
    let item = quote! {
        /// Documented.
        #[cfg(unix)]
        #[cfg(feature = "stock")]
        pub(crate) async fn reserve(Event(event): Event<Placed>, mut tx: Tx<'_>) -> Result<(), Error> {
            this is ?? not Rust yet
        }
    };
    let declaration = Declaration::read(keys, item, &diagnostics).expect("a function");
    let handler = validate::validate(&declaration, &diagnostics).expect("no mistake");
    assert!(diagnostics.finish().is_empty());
    let text = |tokens: &dyn ToTokens| tokens.to_token_stream().to_string();
    assert_eq!(handler.ident, "reserve");
    assert_eq!(text(handler.visibility), "pub (crate)");
    assert_eq!(handler.conditions.len(), 2);
    assert_eq!(handler.consumer.value(), "inventory");
    assert_eq!(text(&handler.crate_path), "crate :: inbox");
    assert_eq!(text(handler.event), "Event < Placed >");
    assert_eq!(
        handler.arguments.iter().map(|ty| text(ty)).collect::<Vec<_>>(),
        ["Event < Placed >", "Tx < '_ >"]
    );
    assert_eq!(text(handler.output), "Result < () , Error >");
}

#[test]
fn the_consumer_is_a_name_to_store() {
    check_keys(quote!(consumer = "Billing-2_eu"), &[]);
    check_keys(
        quote!(),
        &["handler `reserve` has no consumer; the inbox stores one, so it must survive renaming"],
    );
    check_keys(quote!(consumer = ""), &["`consumer` is empty"]);
    check_keys(
        quote!(consumer = "billing.eu"),
        &["`consumer` consists of `A-Z`, `a-z`, `0-9`, `-` and `_`"],
    );
    check_keys(quote!(consumer = BILLING), &["`consumer` takes a string literal"]);
}

#[test]
fn a_key_that_was_not_understood_is_one_mistake() {
    check_keys(quote!("inventory"), &["expected a key, such as `consumer`"]);
    check_keys(quote!(consumr = "inventory"), &["unknown key `consumr`"]);
    check_keys(
        quote!(consumer("inventory")),
        &["`consumer` takes a string literal"],
    );
    check_keys(
        quote!(consumer = "a", consumer = "b"),
        &["`consumer` is written twice"],
    );
    check_keys(
        quote!(consumer = "a", crate = "b"),
        &["`crate` takes a path without quotes"],
    );
}

#[test]
fn a_handler_is_a_plain_async_function() {
    check_function(
        quote!(
            fn reserve(event: Event<Placed>) -> Result<(), Error> {}
        ),
        &["handler `reserve` is not async"],
    );
    check_function(
        quote!(
            const fn reserve(event: Event<Placed>) -> Result<(), Error> {}
        ),
        &["handler `reserve` is const, but it runs for each message"],
    );
    check_function(
        quote!(
            async unsafe extern "C" fn reserve(event: Event<Placed>, more: ...) -> Result<(), Error> {}
        ),
        &[
            "handler `reserve` is unsafe, but the runtime cannot know when it may call it",
            "handler `reserve` is extern, but only Rust calls it",
            "handler `reserve` is variadic, but each argument is taken from the message by its type",
        ],
    );
    for parameters in [quote!(<T>), quote!(<'a>), quote!(<const N: usize>)] {
        check_function(
            quote!(async fn reserve #parameters(event: Event<Placed>) -> Result<(), Error> {}),
            &["handler `reserve` is generic, but one registration stands for one function"],
        );
    }
}

#[test]
fn arguments_are_known_types() {
    check_function(
        quote!(
            async fn reserve() -> Result<(), Error> {}
        ),
        &["handler `reserve` takes no event"],
    );
    check_function(
        quote!(
            async fn reserve(&self, event: Event<Placed>) -> Result<(), Error> {}
        ),
        &["handler `reserve` takes `self`, but a handler has no object to run on"],
    );
    check_function(
        quote!(
            async fn reserve(self: Box<Self>) -> Result<(), Error> {}
        ),
        &["handler `reserve` takes `self`, but a handler has no object to run on"],
    );
    check_function(
        quote!(
            async fn reserve(event: Event<(u8, impl Sized)>) -> Result<(), Error> {}
        ),
        &["an argument of a handler has one type, and `impl` stands for many"],
    );
    check_function(
        quote!(
            async fn reserve(event: Event<Placed>, #[cfg_attr(a, cfg(b))] tx: Tx<'_>) -> Result<(), Error> {}
        ),
        &["an argument of a handler cannot be conditional"],
    );
}

#[test]
fn a_handler_can_fail() {
    let wrong = "handler `reserve` returns nothing, so it cannot report a failure";
    check_function(
        quote!(
            async fn reserve(event: Event<Placed>) {}
        ),
        &[wrong],
    );
    check_function(
        quote!(
            async fn reserve(event: Event<Placed>) -> () {}
        ),
        &[wrong],
    );
    check_function(
        quote!(
            async fn reserve(event: Event<Placed>) -> anyhow::Result<()> {}
        ),
        &[],
    );
}

#[test]
fn only_functions_are_handlers() {
    let wrong = "`#[idempotent_handler]` belongs on a function";
    check_function(
        quote!(
            struct Reserve;
        ),
        &[wrong],
    );
    check_function(quote!(impl Reserve { fn reserve() {} }), &[wrong]);
    check_function(
        quote!(
            mod reserve {}
        ),
        &[wrong],
    );
}

#[test]
fn a_stand_in_is_written_where_it_can_be() {
    for (item, expected) in [
        (
            quote!(
                fn reserve() {}
            ),
            true,
        ),
        (
            quote!(
                fn reserve(&self) {}
            ),
            false,
        ),
        (
            quote!(
                struct Reserve;
            ),
            false,
        ),
    ] {
        let tokens = attribute(quote!(), item.clone()).tokens.to_string();
        assert_eq!(tokens.contains("REGISTRATION"), expected, "{item}");
    }
}
