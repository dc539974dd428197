//! Payloads for display: sensitive fields are masked, and payloads that cannot be masked field by
//! field are hidden.
//!
//! Invariant: stored, sent and handled payloads do not change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use crate::catalogue::CatalogueEntry;
use crate::message::{JSON, Message};
use crate::payload::{from_json, is_media_type};

/// Sensitive values' replacement.
pub const MASK: &str = "***";

/// Sensitive fields by event type.
///
/// A field with `#[domain_event(sensitive)]` is masked with its whole value. So is every field of
/// the payload with its name, at any depth, ignoring case, `_` and `-`, in each version of the
/// event type. A program masks only fields that its own types mark: a consumer with its own type
/// for an event must mark its fields too.
///
/// ```
/// use outbox_core::{DomainEvent, MaskedPayload, SensitiveFields};
///
/// #[derive(DomainEvent, serde::Serialize)]
/// #[domain_event(aggregate = "order", name = "placed")]
/// struct OrderPlaced {
///     #[domain_event(aggregate_id)]
///     order_id: u64,
///     #[domain_event(sensitive)]
///     email: String,
/// }
///
/// let fields = SensitiveFields::linked();
/// let payload = br#"{"order_id":7,"email":"ada@example.org"}"#;
/// let shown = fields.mask("order.placed", 1, "application/json", payload);
/// assert_eq!(shown.to_string(), r#"{"email":"***","order_id":7}"#);
/// // An event of another program.
/// let shown = fields.mask("order.archived", 1, "application/json", payload);
/// assert_eq!(shown, MaskedPayload::UnknownEvent { bytes: 40 });
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SensitiveFields {
    events: BTreeMap<String, Known>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Known {
    versions: BTreeSet<u32>,
    /// Names of the sensitive fields of all versions, normalised by [`plain`].
    fields: BTreeSet<String>,
}

impl SensitiveFields {
    /// Hides all payloads.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Collects the event types linked into this program, see
    /// [`Catalogue::linked`](crate::Catalogue::linked). Several types of one event add up.
    #[must_use]
    pub fn linked() -> Self {
        let mut all = Self::new();
        for entry in inventory::iter::<CatalogueEntry> {
            for event in entry.descriptors {
                all.add(event.event_type(), event.version, entry.sensitive);
            }
        }
        all
    }

    /// Adds an event type with its sensitive payload fields. Without fields, the whole payload is
    /// shown.
    #[must_use]
    pub fn with_event(mut self, event_type: impl Into<String>, version: u32, fields: &[&str]) -> Self {
        self.add(event_type.into(), version, fields);
        self
    }

    fn add(&mut self, event_type: String, version: u32, fields: &[&str]) {
        let known = self.events.entry(event_type).or_default();
        known.versions.insert(version);
        known.fields.extend(fields.iter().map(|field| plain(field)));
    }

    /// Masks a payload.
    #[must_use]
    pub fn mask_message(&self, message: &Message) -> MaskedPayload {
        let Message {
            event_type,
            event_version,
            content_type,
            payload,
            ..
        } = message;
        self.mask(event_type, *event_version, content_type, payload)
    }

    /// Masks a payload and returns it as JSON: keys sorted, integers beyond 64 bits with reduced
    /// precision.
    #[must_use]
    pub fn mask(&self, event_type: &str, version: u32, content_type: &str, payload: &[u8]) -> MaskedPayload {
        let bytes = payload.len();
        let known = self.events.get(event_type);
        let Some(known) = known.filter(|known| known.versions.contains(&version)) else {
            return MaskedPayload::UnknownEvent { bytes };
        };
        let value = match is_media_type(content_type, JSON) {
            true => from_json::<Value>(payload).ok(),
            false => None,
        };
        match value {
            Some(mut value) if known.fields.is_empty() || value.is_object() => {
                let was_met = mask(&mut value, &known.fields);
                if !was_met && !known.fields.is_empty() && may_have_nameless_fields(&value) {
                    return MaskedPayload::Unreadable { bytes };
                }
                MaskedPayload::Json(value.to_string())
            }
            _ => MaskedPayload::Unreadable { bytes },
        }
    }
}

/// serde also reads structs and variants from arrays, in which fields have no names.
fn may_have_nameless_fields(value: &Value) -> bool {
    value
        .as_object()
        .is_none_or(|values| values.values().any(Value::is_array))
}

/// A misspelled `Email` or `e-mail` is just as sensitive.
fn plain(name: &str) -> String {
    let name = name.chars().filter(|c| !matches!(c, '_' | '-'));
    name.flat_map(char::to_lowercase).collect()
}

/// Masks sensitive fields. The recursion is bounded, because the JSON and CBOR parsers limit the
/// depth.
fn mask(value: &mut Value, fields: &BTreeSet<String>) -> bool {
    let mut was_met = false;
    match value {
        Value::Object(values) => {
            for (name, value) in values {
                was_met |= match fields.contains(&plain(name)) {
                    true => {
                        *value = MASK.into();
                        true
                    }
                    false => mask(value, fields),
                };
            }
        }
        Value::Array(values) => {
            for value in values {
                was_met |= mask(value, fields);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    was_met
}

/// A payload for display, on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MaskedPayload {
    /// JSON with [`MASK`].
    Json(String),
    /// Unknown event type or version.
    UnknownEvent {
        /// Payload size.
        bytes: usize,
    },
    /// Damaged payload, or custom codec.
    Unreadable {
        /// Payload size.
        bytes: usize,
    },
}

impl fmt::Display for MaskedPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(json) => f.write_str(json),
            Self::UnknownEvent { bytes } => write!(f, "{MASK} ({bytes} bytes of an unknown event type)"),
            Self::Unreadable { bytes } => {
                write!(f, "{MASK} ({bytes} bytes that cannot be shown field by field)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> SensitiveFields {
        SensitiveFields::new()
            .with_event("order.placed", 1, &["mail"])
            .with_event("order.placed", 2, &["email", "buyer"])
            .with_event("order.shipped", 1, &[])
    }

    #[track_caller]
    fn check(event_type: &str, version: u32, content_type: &str, payload: &str, expected: &str) {
        let shown = fields().mask(event_type, version, content_type, payload.as_bytes());
        assert_eq!(shown.to_string(), expected);
    }

    #[test]
    fn sensitive_fields_are_masked_with_nested_values() {
        let json = "application/json; charset=utf-8";
        for (payload, expected) in [
            (r#"{"id":1,"email":"a"}"#, r#"{"email":"***","id":1}"#),
            (
                r#"{"buyer":{"name":"a"},"email":null}"#,
                r#"{"buyer":"***","email":"***"}"#,
            ),
            (r#"{"Placed":{"email":"a"}}"#, r#"{"Placed":{"email":"***"}}"#),
            (
                r#"{"t":"Placed","email":["a"]}"#,
                r#"{"email":"***","t":"Placed"}"#,
            ),
            (
                r#"{"lines":[{"email":"a"},1]}"#,
                r#"{"lines":[{"email":"***"},1]}"#,
            ),
            (r#"{"em\u0061il":"a","email":"b"}"#, r#"{"email":"***"}"#),
            (
                r#"{"E-Mail":"a","e_mail":"b","emails":1}"#,
                r#"{"E-Mail":"***","e_mail":"***","emails":1}"#,
            ),
            (r#"{"mail":"a"}"#, r#"{"mail":"***"}"#),
        ] {
            check("order.placed", 2, json, payload, expected);
            check("order.placed", 1, json, payload, expected);
        }
        check("order.shipped", 1, json, r#"{"email":"a"}"#, r#"{"email":"a"}"#);
    }

    #[test]
    fn payload_without_named_fields_is_hidden() {
        let json = "application/json";
        let unreadable = "*** (8 bytes that cannot be shown field by field)";
        for payload in [r#"{"email""#, r#"["a", 1]"#, r#""abcdef""#, "12345678"] {
            check("order.placed", 1, json, payload, unreadable);
        }
        for (payload, bytes) in [
            (r#"{"Placed":[7,"a"]}"#, "18"),
            (r#"{"t":"P","c":[7,"a"]}"#, "21"),
        ] {
            check("order.placed", 1, json, payload, &unreadable.replace('8', bytes));
        }
        check(
            "order.placed",
            1,
            "image/png",
            r#"{"id":12}"#,
            &unreadable.replace('8', "9"),
        );
        let unknown = "*** (2 bytes of an unknown event type)";
        for (event_type, version) in [("order.placed", 3), ("order.place", 1), ("", 0)] {
            check(event_type, version, json, "{}", unknown);
        }
        let none = SensitiveFields::new().mask("order.shipped", 1, json, b"{}");
        assert_eq!(none, MaskedPayload::UnknownEvent { bytes: 2 });
    }
}
