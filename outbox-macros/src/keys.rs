//! Reads lists of keys (`flag, key = value`) in attributes. A wrong value is reported and left out.

use std::ops::RangeInclusive;

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::parse::{Parse, Parser};
use syn::punctuated::Punctuated;
use syn::{LitInt, LitStr, Meta, Token};

use crate::diagnostics::Diagnostics;

pub(crate) struct Keys<'a> {
    written: Vec<Meta>,
    diagnostics: &'a Diagnostics,
}

impl<'a> Keys<'a> {
    pub(crate) fn read(
        lists: impl IntoIterator<Item = TokenStream>,
        legal: &[&str],
        diagnostics: &'a Diagnostics,
    ) -> Self {
        let mut written: Vec<Meta> = Vec::new();
        let fix = format!("legal keys are {}", enumerate(legal));
        for list in lists {
            let list = Punctuated::<Meta, Token![,]>::parse_terminated.parse2(list);
            let list = list.map_err(|error| diagnostics.error_at(error.span(), &error, &fix));
            for meta in list.into_iter().flatten() {
                let path = meta.path();
                let key = path.to_token_stream();
                if !legal.iter().any(|legal| path.is_ident(legal)) {
                    diagnostics.error(path, format!("unknown key `{key}`"), &fix);
                } else if written.iter().any(|other| path.is_ident(&name_of(other))) {
                    diagnostics.error(path, format!("`{key}` is written twice"), "keep one");
                } else {
                    written.push(meta);
                }
            }
        }
        Self { written, diagnostics }
    }

    /// Reads `key` alone, and returns it for later errors.
    pub(crate) fn flag(&mut self, key: &str) -> Option<Ident> {
        let meta = self.take(key)?;
        if let Meta::Path(path) = &meta {
            return path.get_ident().cloned();
        }
        let wrong = format!("`{key}` is a flag and takes no value");
        self.diagnostics
            .error(meta, wrong, format!("write `{key}` alone, or leave it out"));
        None
    }

    pub(crate) fn value<T: Parse>(&mut self, key: &str, example: &str) -> Option<T> {
        let meta = self.take(key)?;
        let value = match &meta {
            Meta::NameValue(meta) => meta.value.to_token_stream(),
            Meta::Path(_) | Meta::List(_) => TokenStream::new(),
        };
        let parsed = syn::parse2(value).ok();
        if parsed.is_none() {
            let wrong = format!("`{key}` has another kind of value");
            self.diagnostics
                .error(meta, wrong, format!("write for example `{key} = {example}`"));
        }
        parsed
    }

    pub(crate) fn number(&mut self, key: &str, legal: RangeInclusive<u32>) -> Option<u32> {
        let literal: LitInt = self.value(key, "1")?;
        let number = literal.base10_parse().ok();
        let number = number.filter(|number| legal.contains(number));
        if number.is_none() {
            let (least, most) = legal.into_inner();
            let wrong = format!("`{key}` is a number from {least} to {most}");
            self.diagnostics
                .error(literal, wrong, format!("write for example `{key} = {least}`"));
        }
        number
    }

    /// Reads `key = "…"`. `rule` returns the mistake in a text.
    pub(crate) fn text<T>(
        &mut self,
        key: &str,
        example: &str,
        rule: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<(LitStr, T)> {
        let example = format!("\"{example}\"");
        let literal: LitStr = self.value(key, &example)?;
        match rule(&literal.value()) {
            Ok(value) => Some((literal, value)),
            Err(wrong) => {
                let fix = format!("write for example `{key} = {example}`");
                self.diagnostics.error(literal, format!("`{key}` {wrong}"), fix);
                None
            }
        }
    }

    fn take(&mut self, key: &str) -> Option<Meta> {
        let index = self.written.iter().position(|meta| meta.path().is_ident(key))?;
        Some(self.written.swap_remove(index))
    }
}

fn name_of(meta: &Meta) -> String {
    meta.path().to_token_stream().to_string()
}

/// Joins words: "`a`, `b` and `c`".
pub(crate) fn enumerate(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;
    use syn::Path;

    use super::*;

    const LEGAL: &[&str] = &["name", "version", "quiet", "crate"];
    const LIST: &str = "\nnote: legal keys are `name`, `version`, `quiet` and `crate`";

    type Read = (Option<String>, Option<u32>, Option<Ident>, Option<Path>);

    #[track_caller]
    fn check(arguments: TokenStream, expected: &[&str]) -> Read {
        let diagnostics = Diagnostics::default();
        let mut keys = Keys::read([arguments], LEGAL, &diagnostics);
        let name = keys.text("name", "a", |text| Ok(text.to_owned()));
        let read = (
            name.map(|(_, text)| text),
            keys.number("version", 1..=10),
            keys.flag("quiet"),
            keys.value("crate", "::some::path"),
        );
        let errors = diagnostics.expansion(TokenStream::new()).errors;
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, expected);
        read
    }

    #[test]
    fn every_kind_of_key_is_read() {
        let (name, version, quiet, path) =
            check(quote!(name = "a", version = 2, quiet, crate = ::a::b,), &[]);
        assert_eq!((name.as_deref(), version), (Some("a"), Some(2)));
        assert!(quiet.is_some() && path.is_some_and(|path| path.segments.len() == 2));
        assert!(check(quote!(), &[]).0.is_none());
    }

    #[test]
    fn a_mistake_does_not_hide_the_next() {
        check(
            quote!(
                nam = "a",
                name = 1,
                version = 11,
                quiet = true,
                crate = "c",
                quiet
            ),
            &[
                &format!("unknown key `nam`{LIST}"),
                "`quiet` is written twice\nnote: keep one",
                "`name` has another kind of value\nnote: write for example `name = \"a\"`",
                "`version` is a number from 1 to 10\nnote: write for example `version = 1`",
                "`quiet` is a flag and takes no value\nnote: write `quiet` alone, or leave it out",
                "`crate` has another kind of value\nnote: write for example `crate = ::some::path`",
            ],
        );
        check(quote!(name = "a" version = 2), &[&format!("expected `,`{LIST}")]);
    }
}
