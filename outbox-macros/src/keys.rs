//! Parses lists of keys (`flag, key = value`) in attributes.
//!
//! Invariant: each key is cut out before it is parsed, so a mistake in one key does not hide
//! mistakes in later keys. `syn`'s own parser stops at the first mistake.

use std::mem;

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{LitInt, LitStr, Path, Token};

use crate::diagnostics::Diagnostics;

#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) enum Slot<T> {
    #[default]
    Absent,
    /// The key is wrong and already reported: neither missing nor usable.
    Faulty,
    Given(T),
}

impl<T> Slot<T> {
    pub(crate) fn as_ref(&self) -> Slot<&T> {
        match self {
            Slot::Absent => Slot::Absent,
            Slot::Faulty => Slot::Faulty,
            Slot::Given(value) => Slot::Given(value),
        }
    }

    pub(crate) fn given(self) -> Option<T> {
        match self {
            Slot::Given(value) => Some(value),
            Slot::Absent | Slot::Faulty => None,
        }
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Slot::Absent)
    }

    /// The nearer place (`self`) wins.
    pub(crate) fn or(self, farther: Self) -> Self {
        match (self, farther) {
            (Slot::Given(value), _) | (_, Slot::Given(value)) => Slot::Given(value),
            (Slot::Absent, Slot::Absent) => Slot::Absent,
            _ => Slot::Faulty,
        }
    }
}

pub(crate) struct Written<'a> {
    pub(crate) key: Ident,
    rest: TokenStream,
    legal: &'a [&'a str],
    diagnostics: &'a Diagnostics,
}

pub(crate) struct Word {
    pub(crate) ident: Ident,
    pub(crate) arguments: Option<Group>,
}

/// Cuts the arguments of an attribute into keys. Reports anything else, and then returns `false`.
pub(crate) fn read<'a>(
    arguments: TokenStream,
    legal: &'a [&'a str],
    diagnostics: &'a Diagnostics,
    mut each: impl FnMut(Written<'a>),
) -> bool {
    let mut all_keys = true;
    for item in split(arguments, diagnostics) {
        let mut tokens = item.clone().into_iter();
        if let Some(TokenTree::Ident(key)) = tokens.next() {
            each(Written {
                key,
                rest: tokens.collect(),
                legal,
                diagnostics,
            });
        } else {
            all_keys = false;
            diagnostics.error(
                item,
                format!("expected a key, such as `{}`", legal[0]),
                legal_keys(legal),
            );
        }
    }
    all_keys
}

// The split also happens before a word that follows a value, where a comma is missing.
fn split(arguments: TokenStream, diagnostics: &Diagnostics) -> Vec<TokenStream> {
    let mut items = Vec::new();
    let mut item = Vec::new();
    for token in arguments {
        match &token {
            TokenTree::Punct(punct) if punct.as_char() == ',' => {
                items.push(mem::take(&mut item));
                continue;
            }
            TokenTree::Ident(word) if !matches!(item.last(), None | Some(TokenTree::Punct(_))) => {
                diagnostics.error(
                    word,
                    format!("expected a comma before `{word}`"),
                    "separate keys by commas",
                );
                items.push(mem::take(&mut item));
            }
            _ => {}
        }
        item.push(token);
    }
    items.push(item);
    items
        .into_iter()
        .filter(|item| !item.is_empty())
        .map(TokenStream::from_iter)
        .collect()
}

impl Written<'_> {
    /// Reads `key = "…"`.
    pub(crate) fn string(self, slot: &mut Slot<LitStr>) {
        self.value(slot, "a string literal", "\"…\"", syn::parse2);
    }

    /// Reads `key = ["…", "…"]`, not empty.
    pub(crate) fn strings(self, slot: &mut Slot<Vec<LitStr>>) {
        let kind = "string literals in brackets, at least one";
        self.value(slot, kind, "[\"…\"]", |tokens| parse_strings.parse2(tokens));
    }

    /// Reads `key = 1`.
    pub(crate) fn integer(self, slot: &mut Slot<LitInt>) {
        self.value(slot, "a whole number without quotes", "1", syn::parse2);
    }

    /// Reads `key = ::some::path`.
    pub(crate) fn path(self, slot: &mut Slot<Path>) {
        self.value(slot, "a path without quotes", "::some::path", |tokens| {
            Path::parse_mod_style.parse2(tokens)
        });
    }

    /// Reads `key = word` or `key = word(…)`, but does not check the contents of the parentheses.
    pub(crate) fn word(self, slot: &mut Slot<Word>, words: &[&str]) {
        let (key, diagnostics) = (self.key.clone(), self.diagnostics);
        let kind = format!("one of {}, without quotes", enumerate(words));
        let written = self.rest.to_string();
        let quoted = words.iter().find(|word| written.contains(&format!("\"{word}\"")));
        let example = quoted.unwrap_or(&words[0]);
        self.value(slot, &kind, example, |tokens| parse_word.parse2(tokens));
        if let Slot::Given(word) = slot
            && !words.iter().any(|legal| word.ident == legal)
        {
            let wrong = format!("`{key}` cannot be `{}`", word.ident);
            diagnostics.error(
                &word.ident,
                wrong,
                format!("legal values are {}", enumerate(words)),
            );
            *slot = Slot::Faulty;
        }
    }

    /// Reads `key` alone. The slot keeps it for later errors.
    pub(crate) fn flag(self, slot: &mut Slot<Ident>) {
        let Some(written) = self.first(slot) else { return };
        let key = &written.key;
        if written.rest.is_empty() {
            *slot = Slot::Given(key.clone());
        } else {
            let fix = format!("write `{key}` alone, or leave it out");
            written.diagnostics.error(
                &written.rest,
                format!("`{key}` is a flag and takes no value"),
                fix,
            );
            *slot = Slot::Faulty;
        }
    }

    pub(crate) fn unknown(self) {
        self.diagnostics.error(
            &self.key,
            format!("unknown key `{}`", self.key),
            legal_keys(self.legal),
        );
    }

    pub(crate) fn misplaced<T>(self, slot: &mut Slot<T>, wrong: &str, fix: &str) {
        self.diagnostics.error(&self.key, wrong, fix);
        *slot = Slot::Faulty;
    }

    fn value<T>(
        self,
        slot: &mut Slot<T>,
        kind: &str,
        example: &str,
        parse: impl FnOnce(TokenStream) -> syn::Result<T>,
    ) {
        let Some(written) = self.first(slot) else { return };
        let key = written.key;
        let mut rest = written.rest.into_iter();
        let value: TokenStream = match rest.next() {
            Some(TokenTree::Punct(punct)) if punct.as_char() == '=' => rest.collect(),
            _ => TokenStream::new(),
        };
        match parse(value.clone()) {
            Ok(value) => *slot = Slot::Given(value),
            Err(_) => {
                let at = if value.is_empty() {
                    key.to_token_stream()
                } else {
                    value
                };
                written.diagnostics.error(
                    at,
                    format!("`{key}` takes {kind}"),
                    format!("write `{key} = {example}`"),
                );
                *slot = Slot::Faulty;
            }
        }
    }

    // `None` if the key is repeated, after reporting it.
    fn first<T>(self, slot: &Slot<T>) -> Option<Self> {
        if slot.is_absent() {
            return Some(self);
        }
        let wrong = format!("`{}` is written twice", self.key);
        self.diagnostics
            .error(&self.key, wrong, format!("keep one; {}", legal_keys(self.legal)));
        None
    }
}

fn parse_strings(input: ParseStream<'_>) -> syn::Result<Vec<LitStr>> {
    let inside;
    syn::bracketed!(inside in input);
    let strings = Punctuated::<LitStr, Token![,]>::parse_terminated(&inside)?;
    if strings.is_empty() {
        return Err(input.error("no strings"));
    }
    Ok(strings.into_iter().collect())
}

fn parse_word(input: ParseStream<'_>) -> syn::Result<Word> {
    let ident = input.parse()?;
    let arguments: Option<Group> = if input.is_empty() {
        None
    } else {
        Some(input.parse()?)
    };
    match arguments {
        Some(group) if group.delimiter() != Delimiter::Parenthesis => Err(input.error("no parentheses")),
        arguments => Ok(Word { ident, arguments }),
    }
}

fn legal_keys(legal: &[&str]) -> String {
    format!("legal keys are {}", enumerate(legal))
}

/// Joins words: "`a`, `b` and `c`".
fn enumerate(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    const LEGAL: &[&str] = &["name", "version", "quiet", "crate", "order"];

    #[derive(Default)]
    struct Read {
        order: Slot<Word>,
        name: Slot<LitStr>,
        version: Slot<LitInt>,
        quiet: Slot<Ident>,
        path: Slot<Path>,
    }

    fn check(arguments: TokenStream, expected: &[&str]) -> Read {
        let diagnostics = Diagnostics::new();
        let mut slots = Read::default();
        read(arguments, LEGAL, &diagnostics, |written| {
            match written.key.to_string().as_str() {
                "name" => written.string(&mut slots.name),
                "version" => written.integer(&mut slots.version),
                "quiet" => written.flag(&mut slots.quiet),
                "crate" => written.path(&mut slots.path),
                "order" => written.word(&mut slots.order, &["none", "strict"]),
                _ => written.unknown(),
            }
        });
        let errors: Vec<String> = diagnostics.finish().iter().map(ToString::to_string).collect();
        assert_eq!(errors, expected);
        slots
    }

    #[test]
    fn every_kind_of_key_is_read() {
        let slots = check(quote!(name = "a", version = 2, quiet, crate = ::a::b,), &[]);
        assert_eq!(slots.name.given().expect("given").value(), "a");
        assert_eq!(slots.version.given().expect("given").base10_digits(), "2");
        assert!(slots.quiet.given().is_some());
        assert_eq!(slots.path.given().expect("given").segments.len(), 2);
        assert!(check(quote!(), &[]).name.is_absent());
    }

    #[test]
    fn a_mistake_does_not_hide_the_next() {
        check(
            quote!(nam = "a", "b", version = "1", quiet = true, crate = "c"),
            &[
                "unknown key `nam`\nnote: legal keys are `name`, `version`, `quiet`, `crate` and `order`",
                "expected a key, such as `name`\nnote: legal keys are `name`, `version`, `quiet`, `crate` and `order`",
                "`version` takes a whole number without quotes\nnote: write `version = 1`",
                "`quiet` is a flag and takes no value\nnote: write `quiet` alone, or leave it out",
                "`crate` takes a path without quotes\nnote: write `crate = ::some::path`",
            ],
        );
    }

    #[test]
    fn a_value_is_one_literal_after_an_equals_sign() {
        let message = "`name` takes a string literal\nnote: write `name = \"…\"`";
        for arguments in [
            quote!(name),
            quote!(name =),
            quote!(name: "a"),
            quote!(name("a")),
            quote!(name = NAME),
        ] {
            let slots = check(arguments, &[message]);
            assert!(matches!(slots.name, Slot::Faulty));
        }
        check(quote!(name = concat!("a", "b")), &[message]);
    }

    #[test]
    fn a_word_is_one_of_a_list() {
        let slots = check(quote!(order = none), &[]);
        assert!(matches!(slots.order, Slot::Given(Word { arguments: None, .. })));
        let slots = check(quote!(order = strict(for_now = "1h")), &[]);
        let word = slots.order.given().expect("given");
        assert_eq!(word.ident, "strict");
        assert_eq!(
            word.arguments.expect("given").stream().to_string(),
            "for_now = \"1h\""
        );
        for arguments in [
            quote!(order),
            quote!(order = "non"),
            quote!(order = Order::None),
            quote!(order = none[1]),
            quote!(order = none(1)(2)),
            quote!(order(none)),
        ] {
            check(
                arguments,
                &["`order` takes one of `none` and `strict`, without quotes\nnote: write `order = none`"],
            );
        }
        check(
            quote!(order = "strict"),
            &["`order` takes one of `none` and `strict`, without quotes\nnote: write `order = strict`"],
        );
        check(
            quote!(order = non, order = strict),
            &[
                "`order` cannot be `non`\nnote: legal values are `none` and `strict`",
                "`order` is written twice\nnote: keep one; legal keys are `name`, `version`, `quiet`, `crate` and `order`",
            ],
        );
    }

    #[test]
    fn first_of_two_equal_keys_counts() {
        let slots = check(
            quote!(name = "a", name = "b"),
            &[
                "`name` is written twice\nnote: keep one; legal keys are `name`, `version`, `quiet`, `crate` and `order`",
            ],
        );
        assert_eq!(slots.name.given().expect("given").value(), "a");
    }

    #[test]
    fn missing_comma_is_one_mistake() {
        let slots = check(
            quote!(name = "a" version = 2),
            &["expected a comma before `version`\nnote: separate keys by commas"],
        );
        assert!(slots.version.given().is_some());
        check(
            quote!(order = strict(1) quiet version = 2 crate = a::b order = none),
            &[
                "expected a comma before `quiet`\nnote: separate keys by commas",
                "expected a comma before `version`\nnote: separate keys by commas",
                "expected a comma before `crate`\nnote: separate keys by commas",
                "expected a comma before `order`\nnote: separate keys by commas",
                "`order` is written twice\nnote: keep one; legal keys are `name`, `version`, `quiet`, `crate` and `order`",
            ],
        );
    }

    #[test]
    fn nearest_key_wins_and_a_faulty_key_is_not_missing() {
        assert_eq!(Slot::Given(1).or(Slot::Given(2)), Slot::Given(1));
        assert_eq!(Slot::Faulty.or(Slot::Given(2)), Slot::Given(2));
        assert_eq!(Slot::<u8>::Absent.or(Slot::Faulty), Slot::Faulty);
        assert_eq!(Slot::<u8>::Absent.or(Slot::Absent), Slot::Absent);
    }
}
