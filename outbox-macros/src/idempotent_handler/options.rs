//! The rules for a handler's options. Without these rules, a wrong option would fail only when the
//! consumer starts.

use std::ops::RangeInclusive;
use std::time::Duration;

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{LitInt, LitStr, Token};

use super::model::{BusinessKey, Declaration, Options, Strategy};
use crate::diagnostics::Diagnostics;
use crate::durations;
use crate::keys::{self, Slot, Word};
use crate::names::Fault;

/// Wrong options are reported and left out.
pub(super) fn options<'a>(declaration: &'a Declaration, diagnostics: &Diagnostics) -> Options<'a> {
    let keys = &declaration.keys;
    let bare = |key: &str, slot: &'a Slot<Word>| {
        let word = slot.as_ref().given()?;
        refuse_arguments(key, word, diagnostics);
        Some(&word.ident)
    };
    let number = |key: &str, slot: &Slot<LitInt>, legal: RangeInclusive<u32>, fix: &str| {
        let literal = slot.as_ref().given()?;
        let number = literal.base10_parse().ok();
        let number =
            number.filter(|number| legal.contains(number) && ["", "u32"].contains(&literal.suffix()));
        if number.is_none() {
            let wrong = format!(
                "`{key}` is a number from {} to {}, without a suffix",
                legal.start(),
                legal.end()
            );
            diagnostics.error(literal, wrong, fix);
        }
        number
    };
    let options = Options {
        strategy: keys
            .strategy
            .as_ref()
            .given()
            .and_then(|word| strategy(word, diagnostics)),
        order: bare("order", &keys.order),
        batch: number(
            "batch",
            &keys.batch,
            1..=1000,
            "write the maximum number of messages per transaction, for example `batch = 100`",
        ),
        attempts: number(
            "attempts",
            &keys.attempts,
            1..=1_000_000,
            "write the number of failed attempts before a dead letter, for example `attempts = 5`",
        ),
        backoff: keys.backoff.as_ref().given().and_then(|literal| {
            reported(
                literal,
                durations::range("backoff", &literal.value(), "1s..5m"),
                diagnostics,
            )
        }),
        timeout: keys
            .timeout
            .as_ref()
            .given()
            .and_then(|literal| timeout(literal, diagnostics)),
    };
    check_order(declaration, diagnostics);
    options
}

fn reported<T>(literal: &LitStr, outcome: Result<T, Fault>, diagnostics: &Diagnostics) -> Option<T> {
    outcome
        .map_err(|Fault { wrong, fix }| diagnostics.error(literal, wrong, fix))
        .ok()
}

fn timeout(literal: &LitStr, diagnostics: &Diagnostics) -> Option<Duration> {
    let timeout = reported(
        literal,
        durations::duration("timeout", &literal.value(), "20s"),
        diagnostics,
    )?;
    if timeout.is_zero() {
        let fix = "write for example `timeout = \"20s\"`, or leave it out";
        diagnostics.error(literal, "`timeout` is zero, so the handler would never run", fix);
    }
    Some(timeout)
}

fn refuse_arguments(key: &str, word: &Word, diagnostics: &Diagnostics) {
    let Word { ident, arguments } = word;
    if let Some(arguments) = arguments {
        let wrong = format!("`{ident}` takes no arguments");
        diagnostics.error(arguments, wrong, format!("write `{key} = {ident}`"));
    }
}

fn strategy(word: &Word, diagnostics: &Diagnostics) -> Option<Strategy> {
    let name = word.ident.to_string();
    let strategy = match name.as_str() {
        "sequence" => return sequence(word, diagnostics),
        "key" => return business_key(word, diagnostics),
        "constraint" => return constraint(word, diagnostics),
        "message_id" => Strategy::MessageId,
        "natural" => Strategy::Natural,
        _ => Strategy::External,
    };
    refuse_arguments("strategy", word, diagnostics);
    Some(strategy)
}

fn sequence(word: &Word, diagnostics: &Diagnostics) -> Option<Strategy> {
    let mut gap = Slot::Absent;
    if let Some(arguments) = &word.arguments {
        keys::read(arguments.stream(), &["gap"], diagnostics, |written| {
            if written.key == "gap" {
                written.string(&mut gap);
            } else {
                written.unknown();
            }
        });
    }
    let gap = match gap {
        Slot::Given(literal) => {
            let gap = durations::duration("gap", &literal.value(), "30s");
            Some(reported(&literal, gap, diagnostics)?)
        }
        Slot::Absent | Slot::Faulty => None,
    };
    Some(Strategy::Sequence { gap })
}

fn business_key(word: &Word, diagnostics: &Diagnostics) -> Option<Strategy> {
    if let Some(tokens) = arguments(word) {
        // A path to a function must be written `self::function`, because a single word is a field.
        let field = syn::parse2(tokens.clone()).map(BusinessKey::Field);
        if let Ok(key) = field.or_else(|_| syn::parse2(tokens).map(BusinessKey::Function)) {
            return Some(Strategy::Key(key));
        }
    }
    let wrong = "`key` takes a field of the event, or the path of a function";
    let fix = "write for example `strategy = key(order_number)` or `strategy = key(OrderPlaced::number)`";
    refuse(word, wrong, fix, diagnostics);
    None
}

fn constraint(word: &Word, diagnostics: &Diagnostics) -> Option<Strategy> {
    let fix = "write `strategy = constraint(\"…\")` with the name as the database reports it, for example \
               `constraint(\"reservations_pkey\")`";
    let parse = Punctuated::<LitStr, Token![,]>::parse_terminated;
    let Some(Ok(names)) = arguments(word).map(|tokens| parse.parse2(tokens)) else {
        refuse(
            word,
            "`constraint` takes names of constraints in quotes",
            fix,
            diagnostics,
        );
        return None;
    };
    for name in names.iter().filter(|name| name.value().is_empty()) {
        diagnostics.error(name, "the name of the constraint is empty", fix);
    }
    Some(Strategy::Constraint(names.into_iter().collect()))
}

fn arguments(word: &Word) -> Option<TokenStream> {
    let tokens = word.arguments.as_ref()?.stream();
    (!tokens.is_empty()).then_some(tokens)
}

fn refuse(word: &Word, wrong: &str, fix: &str, diagnostics: &Diagnostics) {
    let at = arguments(word).unwrap_or_else(|| word.ident.to_token_stream());
    diagnostics.error(at, wrong, fix);
}

fn check_order(declaration: &Declaration, diagnostics: &Diagnostics) {
    if let (Slot::Given(order), Slot::Given(strategy)) = (&declaration.keys.order, &declaration.keys.strategy)
        && order.ident == "none"
        && strategy.ident == "sequence"
    {
        let wrong = "strategy `sequence` requires order, so messages cannot run in any order";
        let fix = "leave `order` out, or choose another strategy";
        diagnostics.error(&order.ident, wrong, fix);
    }
}
