//! The items of an operation, and their stored form.
//!
//! Invariant: [`OperationScope::from_json`] restores the input of [`OperationScope::to_json`]. An
//! unknown JSON key is an error, because it may narrow the scope.

use std::num::NonZeroU64;

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use time::format_description::well_known::Rfc3339;
use time::macros::datetime;
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

use super::super::{MessageStatus, Selection};
use crate::message::{Aggregate, MessageId};

/// An operation's items.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OperationScope {
    /// Messages of a retry, skip or replay.
    pub selection: Selection,
    /// Maximum messages.
    pub first: Option<NonZeroU64>,
    /// Names of aggregates, consumers or dead letters.
    pub names: Vec<String>,
}

impl OperationScope {
    /// The selected messages.
    #[must_use]
    pub fn messages(selection: Selection) -> Self {
        Self {
            selection,
            ..Self::default()
        }
    }

    /// Sets maximum messages.
    #[must_use]
    pub fn first(mut self, first: Option<NonZeroU64>) -> Self {
        self.first = first;
        self
    }

    /// Items by name.
    #[must_use]
    pub fn names(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            names: names.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// Scope of aggregates.
    #[must_use]
    pub fn aggregates(aggregates: &[Aggregate]) -> Self {
        Self::names(aggregates.iter().map(ToString::to_string))
    }

    /// A JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let selection = self.selection.clone();
        let written = Written {
            id: selection.id.map(|id| id.as_uuid()),
            status: selection.status.map(|status| status.as_str().to_owned()),
            aggregate_type: selection.aggregate_type,
            aggregate_id: selection.aggregate_id,
            event_type: selection.event_type,
            recorded_from: selection.recorded_from.map(text),
            recorded_until: selection.recorded_until.map(text),
            after: selection.after,
            first: self.first,
            names: self.names.clone(),
        };
        serde_json::to_string(&written).unwrap_or_default()
    }

    /// Reads the output of [`to_json`](Self::to_json).
    ///
    /// # Errors
    ///
    /// [`ScopeError`] for any other text, including keys of a newer version.
    pub fn from_json(text: &str) -> Result<Self, ScopeError> {
        // serde would read an empty array as a scope of all messages.
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).map_err(ScopeError)?;
        let written: Written = serde_json::from_value(object.into()).map_err(ScopeError)?;
        let status =
            match written.status.as_deref() {
                Some(name) => Some(status(name).ok_or_else(|| {
                    ScopeError(serde_json::Error::custom(format!("unknown status `{name}`")))
                })?),
                None => None,
            };
        Ok(Self {
            selection: Selection {
                id: written.id.map(MessageId::from),
                status,
                aggregate_type: written.aggregate_type,
                aggregate_id: written.aggregate_id,
                event_type: written.event_type,
                recorded_from: written.recorded_from.as_deref().map(time).transpose()?,
                recorded_until: written.recorded_until.as_deref().map(time).transpose()?,
                after: written.after,
            },
            first: written.first,
            names: written.names,
        })
    }
}

/// RFC 3339 has years of four digits, so other years are clamped.
fn text(time: OffsetDateTime) -> String {
    let first = datetime!(0000-01-01 00:00 UTC);
    let utc = time
        .checked_to_offset(UtcOffset::UTC)
        .unwrap_or(datetime!(9999-12-31 23:59:59 UTC));
    utc.max(first).format(&Rfc3339).unwrap_or_default()
}

fn time(text: &str) -> Result<OffsetDateTime, ScopeError> {
    OffsetDateTime::parse(text, &Rfc3339).map_err(|error| ScopeError(serde_json::Error::custom(error)))
}

fn status(name: &str) -> Option<MessageStatus> {
    use MessageStatus::{Dead, Logged, Pending, Published, Waiting};

    [Pending, Waiting, Published, Dead, Logged]
        .into_iter()
        .find(|status| status.as_str() == name)
}

/// The stored scope is unreadable.
#[derive(Debug, thiserror::Error)]
#[error("this version cannot read the scope of the operation; a newer version may have written it")]
pub struct ScopeError(#[source] serde_json::Error);

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aggregate_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aggregate_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<NonZeroU64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    names: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_scope_is_restored() {
        let selection = Selection::id(MessageId::fresh())
            .status(MessageStatus::Dead)
            .aggregate(&Aggregate::new("order", "47/\0\"11"))
            .event_type("order.placed")
            .recorded_from(datetime!(2026-01-02 03:04:05.000006 UTC))
            .recorded_until(datetime!(2026-01-03 00:00 +2))
            .after(-7);
        let all = OperationScope::messages(selection).first(NonZeroU64::new(3));
        let names = OperationScope::aggregates(&[Aggregate::new("a", "1"), Aggregate::new("b", "2")]);
        for scope in [OperationScope::default(), all, names] {
            assert_eq!(OperationScope::from_json(&scope.to_json()).unwrap(), scope);
        }
    }

    #[test]
    fn unknown_scope_keys_are_rejected() {
        for text in [
            "",
            "[]",
            "{\"aggregate_age\":1}",
            "{\"status\":\"lost\"}",
            "{\"first\":0}",
        ] {
            OperationScope::from_json(text).unwrap_err();
        }
    }
}
