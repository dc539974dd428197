//! The declared item, and its events once all rules hold.

use proc_macro2::Ident;
use syn::{Data, DeriveInput, Fields, Generics, LitStr, Member, Path, Token, Type};

use super::attr::{Keys, Place};
use super::serde_names::SerdeKeys;
use crate::diagnostics::Diagnostics;
use crate::runtime::Runtime;

pub(super) struct Declaration {
    pub(super) ident: Ident,
    pub(super) generics: Generics,
    pub(super) keys: Keys,
    pub(super) serde: SerdeKeys,
    pub(super) body: Body,
}

pub(super) enum Body {
    Struct(Vec<FieldDeclaration>),
    Enum(Vec<VariantDeclaration>),
    Union(Token![union]),
}

pub(super) struct VariantDeclaration {
    pub(super) ident: Ident,
    pub(super) keys: Keys,
    pub(super) serde: SerdeKeys,
    pub(super) fields: Vec<FieldDeclaration>,
}

pub(super) struct FieldDeclaration {
    /// Name of the field, or its index in a tuple.
    pub(super) field: KeyField,
    pub(super) keys: Keys,
    pub(super) serde: SerdeKeys,
}

pub(super) struct EventType {
    pub(super) ident: Ident,
    pub(super) crate_path: Path,
    pub(super) codec: Option<Path>,
    pub(super) is_enum: bool,
    pub(super) events: Vec<Event>,
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
    /// Reports only unreadable keys.
    pub(super) fn read(input: DeriveInput, diagnostics: &Diagnostics) -> Self {
        let place = if matches!(input.data, Data::Enum(_)) {
            Place::Enum
        } else {
            Place::Struct
        };
        let keys = Keys::read(&input.attrs, place, diagnostics);
        let serde = SerdeKeys::read(&input.attrs);
        let body = match input.data {
            Data::Struct(data) => Body::Struct(fields(&data.fields, Place::StructField, diagnostics)),
            Data::Enum(data) => Body::Enum(
                data.variants
                    .into_iter()
                    .map(|variant| VariantDeclaration {
                        keys: Keys::read(&variant.attrs, Place::Variant, diagnostics),
                        serde: SerdeKeys::read(&variant.attrs),
                        fields: fields(&variant.fields, Place::VariantField, diagnostics),
                        ident: variant.ident,
                    })
                    .collect(),
            ),
            Data::Union(data) => Body::Union(data.union_token),
        };
        Self {
            ident: input.ident,
            generics: input.generics,
            keys,
            serde,
            body,
        }
    }

    pub(super) fn crate_path(&self) -> Path {
        let given = self.keys.crate_path.as_ref().given().cloned();
        given.unwrap_or_else(|| Runtime::Core.path())
    }
}

fn fields(fields: &Fields, place: Place, diagnostics: &Diagnostics) -> Vec<FieldDeclaration> {
    let read = |(field, member): (&syn::Field, Member)| FieldDeclaration {
        field: KeyField {
            member,
            ty: field.ty.clone(),
        },
        keys: Keys::read(&field.attrs, place, diagnostics),
        serde: SerdeKeys::read(&field.attrs),
    };
    fields.iter().zip(fields.members()).map(read).collect()
}
