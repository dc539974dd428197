//! The item under the `DomainEvent` derive, before and after its validation.

use proc_macro2::{Ident, TokenStream};
use syn::{Data, DeriveInput, Fields, Generics, LitStr, Member, Path, Type};

use super::attr::{Keys, Place};
use super::serde_names::SerdeKeys;
use crate::diagnostics::Diagnostics;
use crate::runtime::Runtime;

pub(super) struct Declaration {
    pub(super) ident: Ident,
    pub(super) generics: Generics,
    pub(super) crate_path: Path,
    pub(super) codec: Option<Path>,
    pub(super) is_enum: bool,
    /// Keys that the variants of an enum inherit; empty for a struct.
    pub(super) inherited: Keys,
    pub(super) serde: SerdeKeys,
    /// One for a struct.
    pub(super) variants: Vec<VariantDeclaration>,
}

pub(super) struct VariantDeclaration {
    pub(super) ident: Ident,
    /// Name in error messages.
    pub(super) path: String,
    pub(super) keys: Keys,
    /// `None` for a struct.
    pub(super) serde: Option<SerdeKeys>,
    pub(super) fields: Vec<FieldDeclaration>,
}

pub(super) struct FieldDeclaration {
    /// Name of the field, or its index in a tuple.
    pub(super) field: KeyField,
    pub(super) keys: Keys,
    pub(super) serde: SerdeKeys,
}

pub(super) struct Event {
    pub(super) ident: Ident,
    pub(super) aggregate: LitStr,
    pub(super) name: LitStr,
    pub(super) version: u32,
    pub(super) subject: Option<LitStr>,
    pub(super) sequenced: bool,
    pub(super) aggregate_id: KeyField,
    pub(super) dedup_key: Option<KeyField>,
    pub(super) sensitive: Vec<String>,
}

/// The field's type marks the position of errors about the field.
#[derive(Clone)]
pub(super) struct KeyField {
    pub(super) member: Member,
    pub(super) ty: Type,
}

impl Declaration {
    /// Returns `None`, after a reported mistake, for an item that cannot be an event.
    pub(super) fn read(input: TokenStream, diagnostics: &Diagnostics) -> Option<Self> {
        let input: DeriveInput = syn::parse2(input)
            .map_err(|error| diagnostics.error_at(error.span(), &error, "derive it for a struct or an enum"))
            .ok()?;
        let ident = input.ident;
        let place = match input.data {
            Data::Enum(_) => Place::Enum,
            Data::Struct(_) | Data::Union(_) => Place::Struct,
        };
        let mut keys = Keys::read(&input.attrs, place, diagnostics);
        let crate_path = keys.crate_path.take();
        let codec = keys.codec.take();
        let (inherited, variants) = match input.data {
            Data::Struct(data) => {
                let variant = VariantDeclaration {
                    path: ident.to_string(),
                    ident: ident.clone(),
                    keys,
                    serde: None,
                    fields: fields(&data.fields, diagnostics),
                };
                (Keys::default(), vec![variant])
            }
            Data::Enum(data) => {
                let variants = data.variants.into_iter().map(|variant| VariantDeclaration {
                    path: format!("{ident}::{}", variant.ident),
                    keys: Keys::read(&variant.attrs, Place::Variant, diagnostics),
                    serde: Some(SerdeKeys::read(&variant.attrs)),
                    fields: fields(&variant.fields, diagnostics),
                    ident: variant.ident,
                });
                (keys, variants.collect())
            }
            Data::Union(data) => {
                let wrong = format!("union `{ident}` cannot be an event: its active field is unknown");
                let fix = "use a struct for one event, or an enum for several";
                diagnostics.error(data.union_token, wrong, fix);
                return None;
            }
        };
        Some(Self {
            ident,
            generics: input.generics,
            crate_path: crate_path.unwrap_or_else(|| Runtime::Core.path()),
            codec,
            is_enum: matches!(place, Place::Enum),
            inherited,
            serde: SerdeKeys::read(&input.attrs),
            variants,
        })
    }
}

fn fields(fields: &Fields, diagnostics: &Diagnostics) -> Vec<FieldDeclaration> {
    let read = |(field, member): (&syn::Field, Member)| FieldDeclaration {
        field: KeyField {
            member,
            ty: field.ty.clone(),
        },
        keys: Keys::read(&field.attrs, Place::Field, diagnostics),
        serde: SerdeKeys::read(&field.attrs),
    };
    fields.iter().zip(fields.members()).map(read).collect()
}
