//! Tests of the attribute's rules. `outbox-inbox/tests/ui` tests wording and position of errors.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};

use super::attr::Keys;
use super::model::Function;
use super::options::Strategy;
use super::{attribute, validate};
use crate::diagnostics::Diagnostics;

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
    let diagnostics = Diagnostics::default();
    let keys = Keys::read(quote!(consumer = "inventory", crate = crate::inbox), &diagnostics);
    let item = quote! {
        /// Documented.
        #[cfg(unix)]
        #[cfg(feature = "stock")]
        pub(crate) async fn reserve(Event(event): Event<Placed>, mut tx: Tx<'_>) -> Result<(), Error> {
            this is ?? not Rust yet
        }
    };
    let function: Function = syn::parse2(item).expect("a function");
    let handler = validate::validate(&keys, &function, &diagnostics).expect("no mistake");
    assert!(diagnostics.is_empty());
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
    assert_eq!(text(&handler.output), "Result < () , Error >");
}

#[test]
fn consumer_must_be_a_legal_name() {
    check_keys(quote!(consumer = "Billing-2_eu"), &[]);
    check_keys(
        quote!(),
        &["handler `reserve` has no consumer; the inbox stores a name that must survive renaming"],
    );
    check_keys(
        quote!(consumer = "billing.eu"),
        &["`consumer` consists of 1 to 64 characters: `A-Z`, `a-z`, `0-9`, `-` and `_`"],
    );
    check_keys(quote!(consumr = "inventory"), &["unknown key `consumr`"]);
}

#[track_caller]
fn check_options(options: TokenStream, expected: &[&str]) {
    let item = quote!(
        async fn reserve(event: Event<Placed>) -> Result<(), HandlerError> {}
    );
    check(quote!(consumer = "inventory", #options), item, expected);
}

#[test]
fn every_option_is_read() {
    let diagnostics = Diagnostics::default();
    let arguments = quote!(
        consumer = "inventory",
        strategy = sequence(gap = "0s"),
        order = strict,
        batch = 1000,
        attempts = 1,
        backoff = "1s..5m",
        timeout = "20s"
    );
    let options = Keys::read(arguments, &diagnostics).options;
    assert!(diagnostics.is_empty());
    assert!(matches!(
        options.strategy,
        Some(Strategy::Sequence {
            gap: Some(Duration::ZERO)
        })
    ));
    assert_eq!(options.order.expect("given"), "strict");
    assert_eq!((options.batch, options.attempts), (Some(1000), Some(1)));
    let seconds = Duration::from_secs;
    assert_eq!(options.backoff, Some((seconds(1), seconds(300))));
    assert_eq!(options.timeout, Some(seconds(20)));
}

#[test]
fn a_strategy_has_its_own_arguments() {
    for strategy in [
        quote!(message_id),
        quote!(sequence),
        quote!(sequence()),
        quote!(natural),
        quote!(key(order_number)),
        quote!(key(r#type)),
        quote!(key(0)),
        quote!(key(Placed::number)),
        quote!(key(::a::number::<u8>)),
        quote!(key(<Placed as Numbered>::number)),
        quote!(constraint("a")),
        quote!(constraint("a", "b",)),
        quote!(external),
    ] {
        check_options(quote!(strategy = #strategy), &[]);
    }
    for wrong in [
        quote!(message_id()),
        quote!(sequenc),
        quote!("sequence"),
        quote!(key),
        quote!(key()),
        quote!(key("order_number")),
        quote!(key(a, b)),
        quote!(key(a.b)),
        quote!(key(|event| event.a)),
        quote!(constraint),
        quote!(constraint()),
        quote!(constraint(reservations_pkey)),
        quote!(constraint("a", "")),
    ] {
        let message = format!("`{wrong}` is no strategy");
        check_options(quote!(strategy = #wrong), &[&message]);
    }
    check_options(
        quote!(strategy = sequence(gab = "30s", gap = "400d")),
        &[
            "unknown key `gab`",
            "`gap` is a whole number and `ms`, `s`, `m`, `h` or `d`, at most 366 days",
        ],
    );
}

#[test]
fn numbers_and_times_have_bounds() {
    for fine in [
        quote!(batch = 1),
        quote!(batch = 1000),
        quote!(batch = 7u32),
        quote!(attempts = 1_000_000),
        quote!(backoff = "1ms..1ms"),
        quote!(timeout = "1ms"),
    ] {
        check_options(fine, &[]);
    }
    check_options(
        quote!(batch = 1001, attempts = 0, timeout = "0s", backoff = "5m..1s"),
        &[
            "`batch` is a number from 1 to 1000",
            "`attempts` is a number from 1 to 1000000",
            "`backoff` is the shortest and the longest duration, both above zero",
            "`timeout` is zero",
        ],
    );
}

#[test]
fn contradictory_options_are_rejected() {
    check_options(
        quote!(order = none, strategy = sequence(gap = "0s")),
        &["strategy `sequence` requires order, so messages cannot run in any order"],
    );
    for fine in [
        quote!(order = none, strategy = natural),
        quote!(order = strict, strategy = sequence, batch = 10),
    ] {
        check_options(fine, &[]);
    }
    check_options(quote!(order = non), &["`order` cannot be `non`"]);
}

#[test]
fn a_handler_is_a_plain_async_function() {
    check_function(
        quote!(
            fn reserve(event: Event<Placed>) -> Result<(), Error> {}
        ),
        &["handler `reserve` is not async"],
    );
    for parameters in [quote!(<T>), quote!(<'a>), quote!(<const N: usize>)] {
        check_function(
            quote!(async fn reserve #parameters(event: Event<Placed>) -> Result<(), Error> {}),
            &["handler `reserve` is generic, but a registration names one function"],
        );
    }
}

#[test]
fn a_handler_takes_an_event() {
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
        &["handler `reserve` takes `self`, but a handler has no object"],
    );
    check_function(
        quote!(
            async fn reserve(self: Box<Self>) -> Result<(), Error> {}
        ),
        &["handler `reserve` takes `self`, but a handler has no object"],
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
fn code_next_to_errors_is_emitted_where_possible() {
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
