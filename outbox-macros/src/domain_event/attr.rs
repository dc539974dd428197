//! The keys of `#[domain_event(…)]`, and the places where each key is legal.

use proc_macro2::{Ident, TokenStream};
use syn::{Attribute, LitInt, LitStr, Meta, Path};

use crate::diagnostics::Diagnostics;
use crate::keys::{self, Slot, Written};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Place {
    Struct,
    StructField,
    Enum,
    Variant,
    VariantField,
}

/// A misplaced key is [`Slot::Faulty`].
#[derive(Default)]
pub(super) struct Keys {
    pub(super) aggregate: Slot<LitStr>,
    pub(super) name: Slot<LitStr>,
    pub(super) version: Slot<LitInt>,
    pub(super) subject: Slot<LitStr>,
    pub(super) unsequenced: Slot<Ident>,
    pub(super) codec: Slot<Path>,
    pub(super) crate_path: Slot<Path>,
    pub(super) aggregate_id: Slot<Ident>,
    pub(super) dedup_key: Slot<Ident>,
    pub(super) sensitive: Slot<Ident>,
}

impl Place {
    const fn legal(self) -> &'static [&'static str] {
        match self {
            Place::Struct => &[
                "aggregate",
                "name",
                "version",
                "subject",
                "unsequenced",
                "codec",
                "crate",
            ],
            Place::Enum => &["aggregate", "version", "unsequenced", "codec", "crate"],
            Place::Variant => &["name", "version", "subject", "unsequenced", "aggregate"],
            Place::StructField | Place::VariantField => &["aggregate_id", "dedup_key", "sensitive"],
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Place::Struct => "the struct",
            Place::Enum => "the enum",
            Place::Variant => "a variant",
            Place::StructField | Place::VariantField => "a field",
        }
    }

    fn example(self) -> &'static str {
        match self {
            Place::Struct => "aggregate = \"order\", name = \"placed\"",
            Place::Enum => "aggregate = \"order\"",
            Place::Variant => "name = \"placed\"",
            Place::StructField | Place::VariantField => "aggregate_id",
        }
    }

    fn home_of(self, key: &str) -> &'static str {
        let in_enum = matches!(self, Place::Enum | Place::Variant | Place::VariantField);
        match key {
            "aggregate_id" => "the field that identifies the aggregate",
            "dedup_key" => "the field that must not be recorded twice",
            "sensitive" => "each field that is to be masked",
            "name" | "subject" if in_enum => "each variant",
            _ if in_enum => "the enum",
            _ => "the struct",
        }
    }
}

impl Keys {
    pub(super) fn read(attributes: &[Attribute], place: Place, diagnostics: &Diagnostics) -> Self {
        let mut keys = Self::default();
        for attribute in attributes
            .iter()
            .filter(|attribute| attribute.path().is_ident("domain_event"))
        {
            let Some(arguments) = arguments(attribute, place, diagnostics) else {
                keys.excuse_missing();
                continue;
            };
            let mut understood = true;
            let all_keys = keys::read(arguments, place.legal(), diagnostics, |written| {
                understood &= keys.take(written, place);
            });
            if !(all_keys && understood) {
                keys.excuse_missing();
            }
        }
        keys
    }

    fn take(&mut self, written: Written<'_>, place: Place) -> bool {
        match written.key.to_string().as_str() {
            "aggregate" => take(written, &mut self.aggregate, place, Written::string),
            "name" => take(written, &mut self.name, place, Written::string),
            "version" => take(written, &mut self.version, place, Written::integer),
            "subject" => take(written, &mut self.subject, place, Written::string),
            "unsequenced" => take(written, &mut self.unsequenced, place, Written::flag),
            "codec" => take(written, &mut self.codec, place, Written::path),
            "crate" => take(written, &mut self.crate_path, place, Written::path),
            "aggregate_id" => take(written, &mut self.aggregate_id, place, Written::flag),
            "dedup_key" => take(written, &mut self.dedup_key, place, Written::flag),
            "sensitive" => take(written, &mut self.sensitive, place, Written::flag),
            _ => {
                written.unknown();
                return false;
            }
        }
        true
    }

    fn excuse_missing(&mut self) {
        excuse(&mut self.aggregate);
        excuse(&mut self.name);
        excuse(&mut self.aggregate_id);
    }
}

fn excuse<T>(slot: &mut Slot<T>) {
    if slot.is_absent() {
        *slot = Slot::Faulty;
    }
}

fn take<'a, T>(
    written: Written<'a>,
    slot: &mut Slot<T>,
    place: Place,
    read: impl FnOnce(Written<'a>, &mut Slot<T>),
) {
    let key = written.key.to_string();
    if place.legal().contains(&key.as_str()) {
        return read(written, slot);
    }
    let home = place.home_of(&key);
    let wrong = format!("`{key}` belongs on {home}, not on {}", place.noun());
    let example = match key.as_str() {
        "aggregate" | "name" | "subject" => format!("{key} = \"…\""),
        "version" => format!("{key} = 1"),
        "codec" => format!("{key} = MyCodec"),
        "crate" => format!("{key} = ::some::path"),
        _ => key,
    };
    written.misplaced(slot, &wrong, &format!("write `#[domain_event({example})]` there"));
}

fn arguments(attribute: &Attribute, place: Place, diagnostics: &Diagnostics) -> Option<TokenStream> {
    if let Meta::List(list) = &attribute.meta {
        return Some(list.tokens.clone());
    }
    let fix = format!("write `#[domain_event({})]`", place.example());
    diagnostics.error(&attribute.meta, "`domain_event` takes keys in parentheses", fix);
    None
}
