//! Upcasters: convert the payload of an older event version to a handled version, step by step.
//!
//! A failed conversion is fatal, and the dead letter keeps the original message.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use outbox_core::message::JSON;
use outbox_core::payload::{from_json, is_media_type, json_reason, to_json};
use outbox_core::{DomainEvent, Message};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::handler::{HandlerError, Registration};
use crate::start_error::Problem;

type BoxError = Box<dyn Error + Send + Sync>;
type Apply = dyn Fn(&[u8]) -> Result<Vec<u8>, HandlerError> + Send + Sync;

/// Conversion steps from version n of an event type to version n + 1. Pass them to
/// [`Inbox::with_upcasters`](crate::Inbox::with_upcasters).
///
/// The steps convert an unhandled version to the lowest later version with a handler. Messages in
/// the stream and dead letters keep the old version. A missing, duplicate or unused step is an
/// error at the start.
///
/// The steps read and write JSON. A message with another codec becomes a dead letter, unless its
/// version has a handler.
///
/// ```
/// use outbox_core::DomainEvent;
/// use outbox_inbox::Upcasters;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(DomainEvent, Serialize, Deserialize)]
/// #[domain_event(aggregate = "order", name = "placed", version = 2)]
/// struct OrderPlacedV2 { #[domain_event(aggregate_id)] order_id: u64, cents: i64 }
///
/// #[derive(DomainEvent, Serialize, Deserialize)]
/// #[domain_event(aggregate = "order", name = "placed", version = 3)]
/// struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64, cents: i64, currency: String }
///
/// let upcasters = Upcasters::new()
///     // Version 1 no longer has a type. Its payload counted whole euros.
///     .json("order.placed", 1, |mut payload| {
///         let euros = payload["euros"].as_i64().ok_or("no euros")?;
///         payload["cents"] = (euros * 100).into();
///         Ok::<_, &str>(payload)
///     })
///     .step(|old: OrderPlacedV2| {
///         let currency = "EUR".to_owned();
///         OrderPlaced { order_id: old.order_id, cents: old.cents, currency }
///     });
/// ```
#[derive(Clone, Default)]
pub struct Upcasters {
    steps: Vec<Step>,
    mismatches: Vec<Problem>,
}

#[derive(Clone)]
struct Step {
    event_type: String,
    from: u32,
    place: &'static Location<'static>,
    apply: Arc<Apply>,
}

impl fmt::Debug for Upcasters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.iter().map(|step| (&step.event_type, step.from));
        f.debug_list().entries(steps).finish()
    }
}

impl Upcasters {
    /// Creates upcasters without steps.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a step between two types that describe one event type in versions n and n + 1. Any
    /// other pair is a problem at the start. For enums, use [`Self::json`] once per variant.
    #[must_use]
    #[track_caller]
    pub fn step<Old, New>(self, convert: impl Fn(Old) -> New + Send + Sync + 'static) -> Self
    where
        Old: DomainEvent + DeserializeOwned,
        New: DomainEvent,
    {
        self.try_step(move |old| Ok::<New, BoxError>(convert(old)))
    }

    /// As [`Self::step`], for a conversion that can fail. An error is fatal.
    #[must_use]
    #[track_caller]
    pub fn try_step<Old, New, E>(
        mut self,
        convert: impl Fn(Old) -> Result<New, E> + Send + Sync + 'static,
    ) -> Self
    where
        Old: DomainEvent + DeserializeOwned,
        New: DomainEvent,
        E: Into<BoxError>,
    {
        let place = Location::caller();
        match (Old::DESCRIPTORS, New::DESCRIPTORS) {
            ([old], [new]) if old.event_type() == new.event_type() && old.version + 1 == new.version => {
                self.add(old.event_type(), old.version, place, convert)
            }
            (old, new) => {
                let names = |descriptors: &[outbox_core::EventDescriptor]| {
                    let names = descriptors
                        .iter()
                        .map(|event| format!("`{}` version {}", event.event_type(), event.version));
                    names.collect::<Vec<_>>().join(", ")
                };
                self.mismatches.push(Problem::new(format!(
                    "upcaster at {place} leads from {} to {}; use types of one event type in versions n and n + 1, or `Upcasters::json`",
                    names(old),
                    names(new)
                )));
                self
            }
        }
    }

    /// Adds a step on JSON from version `from` to the next version, for versions without a Rust
    /// type. An error is fatal. Integers beyond 64 bits lose digits.
    #[must_use]
    #[track_caller]
    pub fn json<E: Into<BoxError>>(
        self,
        event_type: &str,
        from: u32,
        convert: impl Fn(Value) -> Result<Value, E> + Send + Sync + 'static,
    ) -> Self {
        self.add(event_type.to_owned(), from, Location::caller(), convert)
    }

    fn add<Old: DeserializeOwned, New: Serialize, E: Into<BoxError>>(
        mut self,
        event_type: String,
        from: u32,
        place: &'static Location<'static>,
        convert: impl Fn(Old) -> Result<New, E> + Send + Sync + 'static,
    ) -> Self {
        let name = event_type.clone();
        let failed = move |what: &str, reason: String| {
            HandlerError::fatal(format!(
                "payload of `{name}` version {from} cannot be {what}: {reason}"
            ))
        };
        let apply = move |payload: &[u8]| {
            let old = from_json(payload).map_err(|reason| failed("read by its upcaster", reason))?;
            let new = catch_unwind(AssertUnwindSafe(|| convert(old)))
                .map_err(|_| failed("upcast", "its upcaster panicked".to_owned()))?
                .map_err(|error| failed("upcast", error.into().to_string()))?;
            to_json(&new).map_err(|error| {
                // An error of serde_json may quote the payload.
                let reason = match error.downcast_ref() {
                    Some(error) => json_reason(error),
                    None => error.to_string(),
                };
                failed("written by its upcaster", reason)
            })
        };
        self.steps.push(Step {
            event_type,
            from,
            place,
            apply: Arc::new(apply),
        });
        self
    }

    fn find(&self, event_type: &str, from: u32) -> Option<&Step> {
        self.steps
            .iter()
            .find(|step| step.from == from && step.event_type == event_type)
    }

    pub(crate) fn problems(&self, handlers: &[Registration]) -> Vec<Problem> {
        let mut problems = self.mismatches.clone();
        for (index, step) in self.steps.iter().enumerate() {
            let mut earlier = self.steps[..index].iter();
            let same = |known: &&Step| known.from == step.from && known.event_type == step.event_type;
            if let Some(first) = earlier.find(same) {
                problems.push(Problem::new(format!(
                    "event `{}` has two upcasters from version {}: at {} and {}; remove one of them",
                    step.event_type, step.from, first.place, step.place
                )));
            }
        }
        let mut handled: BTreeMap<(&str, String), BTreeMap<u32, Registration>> = BTreeMap::new();
        for handler in handlers {
            for event in handler.events {
                handled
                    .entry((handler.consumer, event.event_type()))
                    .or_default()
                    .insert(event.version, *handler);
            }
        }
        let (mut missing, mut used) = (BTreeSet::new(), BTreeSet::new());
        for ((_, event_type), versions) in &handled {
            for step in self.steps.iter().filter(|step| step.event_type == *event_type) {
                let later = versions
                    .range((Bound::Excluded(step.from), Bound::Unbounded))
                    .next();
                let Some((_, handler)) = later else { continue };
                used.insert((&step.event_type, step.from));
                let end = self.follow(event_type, step.from + 1, versions);
                if !versions.contains_key(&end) && missing.insert((event_type, end)) {
                    problems.push(Problem::new(format!(
                        "upcaster of `{event_type}` from version {end} to {} is missing: there is one from an earlier version ({}), and handler \
                         {handler} of consumer `{}` handles a later one; add it with `Upcasters::step`",
                        end + 1,
                        step.place,
                        handler.consumer
                    )));
                }
            }
        }
        for step in &self.steps {
            if !used.contains(&(&step.event_type, step.from)) {
                problems.push(Problem::new(format!(
                    "upcaster of `{}` from version {} at {} leads to no handler; remove it, or handle a later version",
                    step.event_type, step.from, step.place
                )));
            }
        }
        problems
    }

    fn follow<T>(&self, event_type: &str, mut version: u32, handled: &BTreeMap<u32, T>) -> u32 {
        while !handled.contains_key(&version)
            && self.find(event_type, version).is_some()
            && let Some(next) = version.checked_add(1)
        {
            version = next;
        }
        version
    }

    pub(crate) fn reaches<T>(
        &self,
        event_type: &str,
        version: u32,
        handled: &BTreeMap<u32, T>,
    ) -> Option<u32> {
        Some(self.follow(event_type, version, handled)).filter(|version| handled.contains_key(version))
    }

    /// Converts a message to version `to`. Errors are fatal; the caller keeps the original message
    /// for the dead letter.
    pub(crate) fn apply(&self, message: &Message, to: u32) -> Result<Message, HandlerError> {
        let mut upcast = message.clone();
        if upcast.event_version < to && !is_media_type(&message.content_type, JSON) {
            return Err(HandlerError::fatal(format!(
                "payload of `{}` version {} cannot be upcast: its content type is `{}`, and upcasters read JSON; handle this \
                 version by a type of its own, or take `RawMessage`",
                message.event_type, message.event_version, message.content_type
            )));
        }
        while upcast.event_version < to {
            let step = self
                .find(&upcast.event_type, upcast.event_version)
                .ok_or_else(|| {
                    HandlerError::fatal(format!(
                        "missing upcaster of `{}` from version {}",
                        upcast.event_type, upcast.event_version
                    ))
                })?;
            upcast.payload = Bytes::from((step.apply)(&upcast.payload)?);
            JSON.clone_into(&mut upcast.content_type);
            upcast.event_version += 1;
        }
        Ok(upcast)
    }
}

#[cfg(test)]
mod tests;
