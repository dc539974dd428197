//! The keys of `#[domain_event(…)]`, and the places where each key is legal.

use proc_macro2::Ident;
use syn::{Attribute, LitStr, Path};

use crate::diagnostics::Diagnostics;
use crate::{keys, names};

#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Struct,
    Enum,
    Variant,
    Field,
}

#[derive(Default)]
pub(super) struct Keys {
    pub(super) aggregate: Option<LitStr>,
    pub(super) name: Option<LitStr>,
    pub(super) version: Option<u32>,
    pub(super) subject: Option<LitStr>,
    pub(super) unsequenced: Option<Ident>,
    pub(super) codec: Option<Path>,
    pub(super) crate_path: Option<Path>,
    pub(super) aggregate_id: Option<Ident>,
    pub(super) dedup_key: Option<Ident>,
    pub(super) sensitive: Option<Ident>,
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
            Place::Field => &["aggregate_id", "dedup_key", "sensitive"],
        }
    }
}

impl Keys {
    pub(super) fn read(attributes: &[Attribute], place: Place, diagnostics: &Diagnostics) -> Self {
        let own = attributes
            .iter()
            .filter(|attribute| attribute.path().is_ident("domain_event"));
        let lists = own.filter_map(|attribute| match attribute.meta.require_list() {
            Ok(list) => Some(list.tokens.clone()),
            Err(error) => {
                diagnostics.error_at(error.span(), &error, "write `#[domain_event(…)]`");
                None
            }
        });
        let mut keys = keys::Keys::read(lists, place.legal(), diagnostics);
        let first = |(literal, ()): (LitStr, ())| literal;
        Self {
            aggregate: keys.text("aggregate", "order", names::event_name).map(first),
            name: keys.text("name", "placed", names::event_name).map(first),
            version: keys.number("version", 1..=u32::MAX),
            subject: keys.text("subject", "audit.orders", names::subject).map(first),
            unsequenced: keys.flag("unsequenced"),
            codec: keys.value("codec", "MyCodec"),
            crate_path: keys.value("crate", "::some::path"),
            aggregate_id: keys.flag("aggregate_id"),
            dedup_key: keys.flag("dedup_key"),
            sensitive: keys.flag("sensitive"),
        }
    }
}
