//! All rules of the derive.
//!
//! Invariant: each mistake is reported once, at the narrowest place. A misplaced key
//! ([`Slot::Faulty`]) is not also reported as missing.

use std::collections::HashMap;
use std::iter;

use proc_macro2::Ident;
use quote::ToTokens;
use syn::{GenericParam, LitInt, LitStr};

use super::attr::Keys;
use super::model::{Body, Declaration, Event, EventType, FieldDeclaration, KeyField};
use super::serde_names::{Nameless, Places, SerdeKeys};
use crate::diagnostics::Diagnostics;
use crate::keys::Slot;
use crate::names::{self, Fault};

/// Returns `None` only after a reported mistake.
pub(super) fn validate(declaration: &Declaration, diagnostics: &Diagnostics) -> Option<EventType> {
    check_item(declaration, diagnostics);
    let candidates = Candidate::of(declaration);
    check_values(&declaration.keys, diagnostics);
    for candidate in candidates.iter().filter(|candidate| candidate.outer.is_some()) {
        check_values(candidate.keys, diagnostics);
    }
    check_aggregates(declaration, &candidates, diagnostics);
    let events: Vec<Option<Event>> = candidates
        .iter()
        .map(|candidate| candidate.event(diagnostics))
        .collect();
    check_unique(events.iter().flatten(), diagnostics);
    Some(EventType {
        ident: declaration.ident.clone(),
        crate_path: declaration.crate_path(),
        codec: declaration.keys.codec.as_ref().given().cloned(),
        is_enum: matches!(declaration.body, Body::Enum(_)),
        events: events.into_iter().collect::<Option<_>>()?,
    })
}

struct Candidate<'a> {
    path: String,
    ident: &'a Ident,
    keys: &'a Keys,
    outer: Option<&'a Keys>,
    serde: (&'a SerdeKeys, Option<&'a SerdeKeys>),
    fields: &'a [FieldDeclaration],
}

impl<'a> Candidate<'a> {
    fn of(declaration: &'a Declaration) -> Vec<Self> {
        let Declaration {
            ident,
            keys,
            serde,
            body,
            ..
        } = declaration;
        match body {
            Body::Struct(fields) => vec![Self {
                path: ident.to_string(),
                ident,
                keys,
                outer: None,
                serde: (serde, None),
                fields,
            }],
            Body::Enum(variants) => variants
                .iter()
                .map(|variant| Self {
                    path: format!("{ident}::{}", variant.ident),
                    ident: &variant.ident,
                    keys: &variant.keys,
                    outer: Some(keys),
                    serde: (serde, Some(&variant.serde)),
                    fields: &variant.fields,
                })
                .collect(),
            Body::Union(_) => Vec::new(),
        }
    }

    /// Value of a key, `Faulty` if the key is wrong in any place.
    fn slot<T>(&self, of: fn(&Keys) -> &Slot<T>) -> Slot<&'a T> {
        iter::once(self.keys)
            .chain(self.outer)
            .chain(self.fields.iter().map(|field| &field.keys))
            .map(|keys| of(keys).as_ref())
            .fold(Slot::Absent, Slot::or)
    }

    fn event(&self, diagnostics: &Diagnostics) -> Option<Event> {
        let aggregate = self.slot(|keys| &keys.aggregate);
        let name = self.slot(|keys| &keys.name);
        if name.is_absent() {
            self.report_missing_name(aggregate.given(), diagnostics);
        }
        let version = match self.slot(|keys| &keys.version) {
            Slot::Absent => Some(1),
            Slot::Faulty => None,
            Slot::Given(literal) => version(literal),
        };
        let aggregate_id = self.key_field("aggregate_id", |keys| &keys.aggregate_id, diagnostics);
        let dedup_key = self.key_field("dedup_key", |keys| &keys.dedup_key, diagnostics);
        let sensitive = self.sensitive(diagnostics);
        if self.fields.is_empty() {
            self.report_no_fields(diagnostics);
        } else if self.slot(|keys| &keys.aggregate_id).is_absent() {
            self.report_missing_aggregate_id(diagnostics);
        }
        Some(Event {
            ident: self.ident.clone(),
            aggregate: aggregate.given()?.clone(),
            name: name.given()?.clone(),
            version: version?,
            subject: self.slot(|keys| &keys.subject).given().cloned(),
            sequenced: self.slot(|keys| &keys.unsequenced).is_absent(),
            aggregate_id: aggregate_id?,
            dedup_key,
            sensitive,
        })
    }

    fn key_field(
        &self,
        key: &str,
        of: fn(&Keys) -> &Slot<Ident>,
        diagnostics: &Diagnostics,
    ) -> Option<KeyField> {
        let mut first: Option<&KeyField> = None;
        for declared in self.fields {
            let Some(word) = of(&declared.keys).as_ref().given() else {
                continue;
            };
            if let Some(first) = first {
                let first = first.member.to_token_stream();
                let wrong = format!("event `{}` has a second `{key}`", self.path);
                diagnostics.error(
                    word,
                    wrong,
                    format!("keep it on one field; `{first}` has it already"),
                );
            }
            first = first.or(Some(&declared.field));
        }
        first.cloned()
    }

    fn sensitive(&self, diagnostics: &Diagnostics) -> Vec<String> {
        let mut all = Vec::new();
        for declared in self.fields {
            let Some(word) = declared.keys.sensitive.as_ref().given() else {
                continue;
            };
            let (item, variant) = self.serde;
            let places = Places {
                field: &declared.serde,
                variant,
                item,
            };
            let outside = [
                ("aggregate_id", &declared.keys.aggregate_id),
                ("dedup_key", &declared.keys.dedup_key),
            ];
            if let Some((key, _)) = outside.into_iter().find(|(_, slot)| !slot.is_absent()) {
                let wrong = format!(
                    "`{key}` cannot be `sensitive`: its value is also outside the payload, where nothing is masked"
                );
                let fix = "use a value without personal data, such as a UUID";
                diagnostics.error(word, wrong, fix);
                continue;
            }
            match places.names(&declared.field.member) {
                Ok(names) => all.extend(names),
                Err(Nameless { wrong, fix }) => diagnostics.error(word, wrong, fix),
            }
        }
        all
    }

    fn report_missing_name(&self, aggregate: Option<&LitStr>, diagnostics: &Diagnostics) {
        let wrong = format!(
            "event `{}` has no name; a stored event needs a name that survives renaming this {}",
            self.path,
            if self.outer.is_some() { "variant" } else { "type" },
        );
        let name = names::suggestion(&self.ident.to_string()).unwrap_or_else(|| "…".to_owned());
        // A struct `OrderPlaced` of the aggregate `order` gets the name `placed`.
        let prefix = aggregate.map(|aggregate| aggregate.value() + "_");
        let name = prefix
            .and_then(|prefix| name.strip_prefix(&prefix))
            .unwrap_or(&name);
        diagnostics.error(
            self.ident,
            wrong,
            format!("add `#[domain_event(name = \"{name}\")]` above it"),
        );
    }

    fn report_missing_aggregate_id(&self, diagnostics: &Diagnostics) {
        let wrong = format!(
            "event `{}` has no aggregate id, so it cannot be put in order",
            self.path
        );
        let names = self
            .fields
            .iter()
            .map(|declared| declared.field.member.to_token_stream().to_string());
        let likely = names
            .into_iter()
            .find(|name| name == "id" || name.ends_with("_id"));
        let example = likely
            .map(|name| format!(", for example `{name}`"))
            .unwrap_or_default();
        let fix = format!(
            "put `#[domain_event(aggregate_id)]` on the field that identifies the aggregate{example}"
        );
        diagnostics.error(self.ident, wrong, fix);
    }

    fn report_no_fields(&self, diagnostics: &Diagnostics) {
        let wrong = format!(
            "event `{}` has no fields, so nothing can identify its aggregate",
            self.path
        );
        let fix = "add a field with `#[domain_event(aggregate_id)]` above it";
        diagnostics.error(self.ident, wrong, fix);
    }
}

fn check_item(declaration: &Declaration, diagnostics: &Diagnostics) {
    let Declaration {
        ident,
        generics,
        body,
        ..
    } = declaration;
    if generics
        .params
        .iter()
        .any(|parameter| !matches!(parameter, GenericParam::Lifetime(_)))
    {
        let wrong = format!("event `{ident}` is generic, but a stored name identifies one type");
        diagnostics.error(&generics.params, wrong, "write one event type per instance");
    } else if !generics.params.is_empty() {
        let wrong = format!("event `{ident}` borrows data, but a stored event outlives the data");
        diagnostics.error(&generics.params, wrong, "own the data, for example as `String`");
    }
    match body {
        Body::Union(token) => {
            let wrong = format!("union `{ident}` cannot be an event: its active field is unknown");
            diagnostics.error(token, wrong, "use a struct for one event, or an enum for several");
        }
        Body::Enum(variants) if variants.is_empty() => {
            let wrong = format!("enum `{ident}` has no variants, so it describes no event");
            diagnostics.error(ident, wrong, "add one variant per event");
        }
        Body::Enum(_) | Body::Struct(_) => {}
    }
}

fn check_values(keys: &Keys, diagnostics: &Diagnostics) {
    check_text(
        &keys.aggregate,
        |text| names::event_name("aggregate", text),
        diagnostics,
    );
    check_text(&keys.name, |text| names::event_name("name", text), diagnostics);
    check_text(&keys.subject, names::subject, diagnostics);
    if let Slot::Given(literal) = &keys.version
        && version(literal).is_none()
    {
        let wrong = "`version` is a number from 1 to 4294967295, without a suffix";
        diagnostics.error(
            literal,
            wrong,
            "write `version = 1`, or leave it out, for the first version",
        );
    }
}

fn check_text(slot: &Slot<LitStr>, rule: impl Fn(&str) -> Result<(), Fault>, diagnostics: &Diagnostics) {
    if let Slot::Given(literal) = slot
        && let Err(Fault { wrong, fix }) = rule(&literal.value())
    {
        diagnostics.error(literal, wrong, fix);
    }
}

fn version(literal: &LitInt) -> Option<u32> {
    let version = literal.base10_parse().ok()?;
    (version >= 1 && ["", "u32"].contains(&literal.suffix())).then_some(version)
}

/// If no event has an aggregate, the check reports one mistake of the item.
fn check_aggregates(declaration: &Declaration, candidates: &[Candidate<'_>], diagnostics: &Diagnostics) {
    let without: Vec<_> = candidates
        .iter()
        .filter(|candidate| candidate.slot(|keys| &keys.aggregate).is_absent())
        .collect();
    let all = !without.is_empty() && without.len() == candidates.len();
    let reported = if all {
        vec![&declaration.ident]
    } else {
        without.iter().map(|c| c.ident).collect()
    };
    for ident in reported {
        let wrong = format!("`{ident}` has no aggregate type");
        let fix = "add `#[domain_event(aggregate = \"…\")]` above it, for example `aggregate = \"order\"`";
        diagnostics.error(ident, wrong, fix);
    }
}

fn check_unique<'a>(events: impl Iterator<Item = &'a Event>, diagnostics: &Diagnostics) {
    let mut first_with = HashMap::new();
    for event in events {
        let key = (event.aggregate.value(), event.name.value(), event.version);
        if let Some(first) = first_with.get(&key) {
            let (aggregate, name, version) = key;
            let wrong = format!(
                "`{}` would be stored as `{aggregate}.{name}` version {version}, as `{first}` is",
                event.ident,
            );
            diagnostics.error(
                &event.name,
                wrong,
                "give it another `name`, or another `version` if its shape changed",
            );
        } else {
            first_with.insert(key, &event.ident);
        }
    }
}
