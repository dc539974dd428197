//! The names that serde gives to a field in a payload.
//!
//! Invariant: a field with an uncertain payload name gets no name, because masking by a wrong name
//! would show the value. serde's own derive reports mistakes in serde's attributes.

use proc_macro2::Ident;
use syn::ext::IdentExt as _;
use syn::meta::ParseNestedMeta;
use syn::{Attribute, Lit, Member, Token, token};

#[derive(Default)]
pub(super) struct SerdeKeys(Vec<SerdeKey>);

struct SerdeKey {
    key: Ident,
    side: Side,
    value: Option<String>,
}

/// `rename(serialize = "a", deserialize = "b")` has one value per side.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Both,
    Written,
    Read,
}

pub(super) struct Nameless {
    pub(super) wrong: String,
    pub(super) fix: &'static str,
}

impl SerdeKeys {
    pub(super) fn read(attributes: &[Attribute]) -> Self {
        let mut keys = Self::default();
        for attribute in attributes
            .iter()
            .filter(|attribute| attribute.path().is_ident("serde"))
        {
            let _ = attribute.parse_nested_meta(|meta| keys.take(&meta));
        }
        keys
    }

    fn take(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        let key = meta.path.require_ident()?.clone();
        if !meta.input.peek(token::Paren) {
            return self.push(key, Side::Both, meta);
        }
        meta.parse_nested_meta(|inner| {
            let side = match inner.path.is_ident("serialize") {
                true => Side::Written,
                false => Side::Read,
            };
            self.push(key.clone(), side, &inner)
        })
    }

    fn push(&mut self, key: Ident, side: Side, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        let value = match meta.input.peek(Token![=]) {
            true => match meta.value()?.parse()? {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            false => None,
        };
        self.0.push(SerdeKey { key, side, value });
        Ok(())
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|known| known.key == key)
    }

    fn value(&self, key: &str, side: Side) -> Option<&str> {
        self.values(key, side).next()
    }

    /// serde accepts each name of `rename(deserialize = "a", deserialize = "b")`.
    fn values(&self, key: &str, side: Side) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(move |known| known.key == key && (known.side == Side::Both || known.side == side))
            .filter_map(|known| known.value.as_deref())
    }
}

pub(super) struct Places<'a> {
    pub(super) field: &'a SerdeKeys,
    pub(super) variant: Option<&'a SerdeKeys>,
    pub(super) item: &'a SerdeKeys,
}

impl Places<'_> {
    pub(super) fn names(&self, member: &Member) -> Result<Vec<String>, Nameless> {
        let Member::Named(ident) = member else {
            return Err(Nameless {
                wrong: "a field of a tuple has no name in the payload, so it cannot be masked".to_owned(),
                fix: "give the fields names: `{ email: String }`",
            });
        };
        self.check()?;
        let ident = ident.unraw().to_string();
        let mut names = Vec::new();
        for side in [Side::Written, Side::Read] {
            let before = names.len();
            names.extend(self.field.values("rename", side).map(str::to_owned));
            if names.len() == before {
                names.push(in_case(self.case(side), &ident));
            }
        }
        let aliases = self.field.0.iter().filter(|known| known.key == "alias");
        names.extend(aliases.filter_map(|alias| alias.value.clone()));
        Ok(names)
    }

    /// Rejects serde attributes that leave the name to other code.
    fn check(&self) -> Result<(), Nameless> {
        let unknown = |key: &str, place: &str| {
            Err(Nameless {
                wrong: format!(
                    "`#[serde({key})]` on {place} leaves the name of a `sensitive` field in the payload to other code"
                ),
                fix: "mark fields of a type whose fields serde writes itself, without this key",
            })
        };
        if self.field.has("skip") {
            return Err(Nameless {
                wrong: "a field that serde skips is never in the payload, so there is nothing to mask"
                    .to_owned(),
                fix: "remove `sensitive`",
            });
        }
        if self.field.has("flatten") {
            return Err(Nameless {
                wrong: "a flattened field has no name in the payload, so it cannot be masked".to_owned(),
                fix: "remove `#[serde(flatten)]`, or write its fields here and mark each of them",
            });
        }
        for (keys, place, forbidden) in [
            (
                self.variant,
                "the variant",
                &["with", "serialize_with", "deserialize_with"][..],
            ),
            (
                Some(self.item),
                "the type",
                &["transparent", "into", "from", "try_from", "remote"],
            ),
        ] {
            if let Some(keys) = keys
                && let Some(key) = forbidden.iter().find(|key| keys.has(key))
            {
                return unknown(key, place);
            }
        }
        Ok(())
    }

    fn case(&self, side: Side) -> Option<&str> {
        match self.variant {
            Some(variant) => variant
                .value("rename_all", side)
                .or_else(|| self.item.value("rename_all_fields", side)),
            None => self.item.value("rename_all", side),
        }
    }
}

fn in_case(case: Option<&str>, field: &str) -> String {
    let pascal = || -> String {
        let words = field.split('_').map(|word| {
            let mut rest = word.chars();
            let first = rest.next().map(|first| first.to_ascii_uppercase());
            first.into_iter().chain(rest).collect::<String>()
        });
        words.collect()
    };
    match case {
        Some("PascalCase") => pascal(),
        Some("camelCase") => {
            let pascal = pascal();
            let mut rest = pascal.chars();
            let first = rest.next().map(|first| first.to_ascii_lowercase());
            first.into_iter().chain(rest).collect()
        }
        Some("UPPERCASE" | "SCREAMING_SNAKE_CASE") => field.to_ascii_uppercase(),
        Some("kebab-case") => field.replace('_', "-"),
        Some("SCREAMING-KEBAB-CASE") => field.to_ascii_uppercase().replace('_', "-"),
        // `lowercase` and `snake_case` do not change field names.
        _ => field.to_owned(),
    }
}
