//! The names that serde gives to a field in a payload.
//!
//! Invariant: a field with an uncertain payload name gets no name, because masking by a wrong name
//! would show the value. serde's own derive reports mistakes in serde's attributes.

use quote::ToTokens;
use syn::ext::IdentExt as _;
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, LitStr, Member, Meta, MetaNameValue, Token};

use crate::diagnostics::Fault;

pub(super) struct SerdeKeys(Vec<Meta>);

impl SerdeKeys {
    pub(super) fn read(attributes: &[Attribute]) -> Self {
        let parse = Punctuated::<Meta, Token![,]>::parse_terminated;
        let own = attributes
            .iter()
            .filter(|attribute| attribute.path().is_ident("serde"));
        Self(
            own.filter_map(|attribute| attribute.parse_args_with(parse).ok())
                .flatten()
                .collect(),
        )
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|meta| meta.path().is_ident(key))
    }

    /// The values of `rename = "a"` and of `rename(serialize = "a", deserialize = "b")`. serde
    /// accepts each name of `rename(deserialize = "a", deserialize = "b")`.
    fn values(&self, key: &str, side: &str) -> Vec<String> {
        let parse = Punctuated::<MetaNameValue, Token![,]>::parse_terminated;
        let mut values = Vec::new();
        for meta in self.0.iter().filter(|meta| meta.path().is_ident(key)) {
            match meta {
                Meta::NameValue(given) => values.extend(text(&given.value)),
                Meta::List(list) => {
                    let sides = list.parse_args_with(parse).into_iter().flatten();
                    let sides = sides.filter(|given| given.path.is_ident(side));
                    values.extend(sides.filter_map(|given| text(&given.value)));
                }
                Meta::Path(_) => {}
            }
        }
        values
    }
}

fn text(value: &Expr) -> Option<String> {
    let literal: LitStr = syn::parse2(value.to_token_stream()).ok()?;
    Some(literal.value())
}

pub(super) struct Places<'a> {
    pub(super) field: &'a SerdeKeys,
    pub(super) variant: Option<&'a SerdeKeys>,
    pub(super) item: &'a SerdeKeys,
}

impl Places<'_> {
    pub(super) fn names(&self, member: &Member) -> Result<Vec<String>, Fault> {
        let Member::Named(ident) = member else {
            return Err(Fault {
                wrong: "a field of a tuple has no name in the payload, so it cannot be masked".to_owned(),
                fix: "give the fields names: `{ email: String }`".to_owned(),
            });
        };
        self.check()?;
        let ident = ident.unraw().to_string();
        let mut names = Vec::new();
        for side in ["serialize", "deserialize"] {
            let renamed = self.field.values("rename", side);
            if renamed.is_empty() {
                names.push(in_case(self.case(side).as_deref(), &ident));
            }
            names.extend(renamed);
        }
        names.extend(self.field.values("alias", ""));
        Ok(names)
    }

    /// Rejects serde attributes such as `with`, because the macro cannot determine the serialized
    /// name.
    fn check(&self) -> Result<(), Fault> {
        let of_variant = ["with", "serialize_with", "deserialize_with"];
        let of_type = ["transparent", "into", "from", "try_from", "remote"];
        for (keys, place, forbidden) in [
            (Some(self.field), "the field", &["skip", "flatten"][..]),
            (self.variant, "the variant", &of_variant),
            (Some(self.item), "the type", &of_type),
        ] {
            if let Some(key) = forbidden
                .iter()
                .find(|key| keys.is_some_and(|keys| keys.has(key)))
            {
                return Err(Fault {
                    wrong: format!(
                        "`#[serde({key})]` on {place} leaves a `sensitive` field without its name in the payload"
                    ),
                    fix: "mark fields that serde writes itself, under their names".to_owned(),
                });
            }
        }
        Ok(())
    }

    fn case(&self, side: &str) -> Option<String> {
        let first = |keys: &SerdeKeys, key| keys.values(key, side).into_iter().next();
        match self.variant {
            Some(variant) => first(variant, "rename_all").or_else(|| first(self.item, "rename_all_fields")),
            None => first(self.item, "rename_all"),
        }
    }
}

fn in_case(case: Option<&str>, field: &str) -> String {
    let capitalized = |word: &str| {
        let mut rest = word.chars();
        let first = rest.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(rest).collect::<String>()
    };
    let pascal = || field.split('_').map(capitalized).collect::<String>();
    match case {
        Some("PascalCase") => pascal(),
        Some("camelCase") => {
            let mut camel = pascal();
            if let Some(first) = camel.get_mut(..1) {
                first.make_ascii_lowercase();
            }
            camel
        }
        Some("UPPERCASE" | "SCREAMING_SNAKE_CASE") => field.to_ascii_uppercase(),
        Some("kebab-case") => field.replace('_', "-"),
        Some("SCREAMING-KEBAB-CASE") => field.to_ascii_uppercase().replace('_', "-"),
        // `lowercase` and `snake_case` do not change field names.
        _ => field.to_owned(),
    }
}
