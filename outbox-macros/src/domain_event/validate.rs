//! All rules of the derive that concern more than one key.

use std::collections::HashMap;

use proc_macro2::Ident;
use quote::ToTokens;

use super::attr::Keys;
use super::model::{Declaration, Event, KeyField, VariantDeclaration};
use super::serde_names::Places;
use crate::diagnostics::Diagnostics;
use crate::names;

/// Returns `None` only after a reported mistake.
pub(super) fn events(declaration: &Declaration, diagnostics: &Diagnostics) -> Option<Vec<Event>> {
    check_item(declaration, diagnostics);
    check_aggregates(declaration, diagnostics);
    let variants = declaration.variants.iter();
    let events: Vec<Option<Event>> = variants
        .map(|variant| event(declaration, variant, diagnostics))
        .collect();
    check_unique(events.iter().flatten(), diagnostics);
    events.into_iter().collect()
}

fn event(
    declaration: &Declaration,
    variant: &VariantDeclaration,
    diagnostics: &Diagnostics,
) -> Option<Event> {
    let (keys, inherited) = (&variant.keys, &declaration.inherited);
    let aggregate = keys.aggregate.as_ref().or(inherited.aggregate.as_ref());
    if keys.name.is_none() {
        let prefix = aggregate.map(|aggregate| aggregate.value() + "_");
        report_missing_name(variant, prefix.as_deref().unwrap_or_default(), diagnostics);
    }
    let aggregate_id = key_field(
        variant,
        "aggregate_id",
        |keys| keys.aggregate_id.as_ref(),
        diagnostics,
    );
    if aggregate_id.is_none() {
        report_missing_aggregate_id(variant, diagnostics);
    }
    let dedup_key = key_field(variant, "dedup_key", |keys| keys.dedup_key.as_ref(), diagnostics);
    let sensitive = sensitive(declaration, variant, diagnostics);
    Some(Event {
        ident: variant.ident.clone(),
        aggregate: aggregate?.clone(),
        name: keys.name.clone()?,
        version: keys.version.or(inherited.version).unwrap_or(1),
        subject: keys.subject.clone(),
        sequenced: keys.unsequenced.is_none() && inherited.unsequenced.is_none(),
        aggregate_id: aggregate_id?,
        dedup_key,
        sensitive,
    })
}

fn key_field(
    variant: &VariantDeclaration,
    key: &str,
    of: fn(&Keys) -> Option<&Ident>,
    diagnostics: &Diagnostics,
) -> Option<KeyField> {
    let mut first: Option<&KeyField> = None;
    for declared in &variant.fields {
        let Some(word) = of(&declared.keys) else { continue };
        if let Some(first) = first {
            let first = first.member.to_token_stream();
            let wrong = format!("event `{}` has a second `{key}`", variant.path);
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

fn sensitive(
    declaration: &Declaration,
    variant: &VariantDeclaration,
    diagnostics: &Diagnostics,
) -> Vec<String> {
    let mut all = Vec::new();
    for declared in &variant.fields {
        let Some(word) = &declared.keys.sensitive else {
            continue;
        };
        let outside = declared.keys.aggregate_id.as_ref();
        if let Some(key) = outside.or(declared.keys.dedup_key.as_ref()) {
            let wrong = format!(
                "`{key}` cannot be `sensitive`: its value is also outside the payload, where nothing is masked"
            );
            let fix = "use a value without personal data, such as a UUID";
            diagnostics.error(word, wrong, fix);
            continue;
        }
        let places = Places {
            field: &declared.serde,
            variant: variant.serde.as_ref(),
            item: &declaration.serde,
        };
        let names = diagnostics.accept(word, places.names(&declared.field.member));
        all.extend(names.into_iter().flatten());
    }
    all
}

/// A struct `OrderPlaced` of the aggregate `order` gets the name `placed`.
fn report_missing_name(variant: &VariantDeclaration, prefix: &str, diagnostics: &Diagnostics) {
    let wrong = format!(
        "event `{}` has no name; a stored event needs a name that survives renaming",
        variant.path
    );
    let name = names::snake_case(&variant.ident.to_string());
    let name = name.strip_prefix(prefix).unwrap_or(&name);
    diagnostics.error(
        &variant.ident,
        wrong,
        format!("add `#[domain_event(name = \"{name}\")]` above it"),
    );
}

fn report_missing_aggregate_id(variant: &VariantDeclaration, diagnostics: &Diagnostics) {
    let wrong = format!(
        "event `{}` has no aggregate id, so it cannot be put in order",
        variant.path
    );
    let mut names = variant
        .fields
        .iter()
        .map(|declared| declared.field.member.to_token_stream().to_string());
    let example = names
        .find(|name| name == "id" || name.ends_with("_id"))
        .map(|name| format!(", for example `{name}`"))
        .unwrap_or_default();
    let fix =
        format!("put `#[domain_event(aggregate_id)]` on the field that identifies the aggregate{example}");
    diagnostics.error(&variant.ident, wrong, fix);
}

fn check_item(declaration: &Declaration, diagnostics: &Diagnostics) {
    let Declaration { ident, generics, .. } = declaration;
    if !generics.params.is_empty() {
        let wrong =
            format!("event `{ident}` is generic or borrows data, but a stored event is one owned type");
        let fix = "name the types, and own the data, for example as `String`";
        diagnostics.error(&generics.params, wrong, fix);
    }
    if declaration.variants.is_empty() {
        let wrong = format!("enum `{ident}` has no variants, so it describes no event");
        diagnostics.error(ident, wrong, "add one variant per event");
    }
}

/// If no variant has an aggregate, the check reports one mistake of the item.
fn check_aggregates(declaration: &Declaration, diagnostics: &Diagnostics) {
    if declaration.inherited.aggregate.is_some() {
        return;
    }
    let variants = declaration.variants.iter();
    let without: Vec<_> = variants
        .filter(|variant| variant.keys.aggregate.is_none())
        .map(|variant| &variant.ident)
        .collect();
    let reported = match without.len() == declaration.variants.len() {
        true => without.first().map(|_| &declaration.ident).into_iter().collect(),
        false => without,
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
