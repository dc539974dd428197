//! Domain events.
//!
//! Invariant: every stored or sent name is written in the event's source code, never derived from a
//! Rust identifier.

use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use crate::payload::{self, CodecError, Json, Payload};

/// A business fact that is published to other services.
///
/// Derive it:
///
/// ```
/// # use outbox_core::DomainEvent;
/// #[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
/// #[domain_event(aggregate = "order", name = "placed", version = 1)]
/// struct OrderPlaced {
///     #[domain_event(aggregate_id)]
///     order_id: u64,
/// }
/// ```
///
/// is the same as
///
/// ```
/// # use outbox_core::{AggregateId, DomainEvent, EventDescriptor, ToAggregateId};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPlaced { order_id: u64 }
/// impl DomainEvent for OrderPlaced {
///     const DESCRIPTORS: &'static [EventDescriptor] = &[EventDescriptor {
///         aggregate: "order",
///         name: "placed",
///         version: 1,
///         subject: None,
///         sequenced: true,
///         rust_type: "my_service::OrderPlaced",
///         file: file!(),
///         line: line!(),
///     }];
///     fn descriptor(&self) -> &'static EventDescriptor {
///         &Self::DESCRIPTORS[0]
///     }
///     fn aggregate_id(&self) -> AggregateId {
///         self.order_id.to_aggregate_id()
///     }
///     fn dedup_key(&self) -> Option<String> {
///         None
///     }
/// }
/// impl outbox_core::payload::EventCodec for OrderPlaced {
///     type Codec = outbox_core::payload::Json;
/// }
/// ```
///
/// plus a [`Catalogue`](crate::Catalogue) entry.
///
/// # Keys of `#[domain_event(…)]`
///
/// | key | where | meaning |
/// |---|---|---|
/// | `aggregate = "order"` | type | type of the aggregate; `[a-z][a-z0-9_-]*`, ≤ 64 bytes |
/// | `name = "placed"` | struct, variant | name within the aggregate; same pattern |
/// | `version = 1` | type, variant | version of the payload's shape, at least 1, default 1 |
/// | `aggregate_id` | field | the aggregate's id, any type with [`ToAggregateId`] |
/// | `dedup_key` | field | optional: a key that must not be recorded twice, see below |
/// | `sensitive` | field | optional: masked when displayed, see [`Self::SENSITIVE`] |
/// | `subject = "…"` | struct, variant | optional: a fixed subject instead of the default one |
/// | `unsequenced` | type, variant | optional: no number and no order, but a cheaper write |
/// | `codec = …` | type | optional: a [`Codec`](crate::payload::Codec); default [`Json`] |
/// | `crate = path` | type | path of `outbox_core`, if not a dependency |
///
/// `dedup_key` accepts any type with `Display`. For 7 days (`RelayConfig::dedup_key_retention`), a
/// second message with the key is rejected, whatever its event type. So make the event's name part
/// of the key.
///
/// On an enum each variant is one event: `aggregate` is on the enum, `name` on the variants. A
/// handler of an enum receives all variants. Choose a stable serde representation that
/// distinguishes them: a payload that decodes to another variant becomes a dead letter.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a domain event",
    label = "this type has no `DomainEvent` implementation",
    note = "add `#[derive(DomainEvent)]` and `#[domain_event(aggregate = \"…\", name = \"…\")]` to `{Self}`"
)]
pub trait DomainEvent: Serialize + Send + Sync + 'static {
    /// Descriptors of the type's events: one per struct or enum variant.
    const DESCRIPTORS: &'static [EventDescriptor];

    /// Sensitive payload fields, for masking by [`SensitiveFields`](crate::SensitiveFields).
    /// Payloads are stored, sent and handled unmasked. Default: none.
    ///
    /// The derive uses all names under which serde reads or writes a field, and fails if the names
    /// are unknown (`flatten`, tuples, `transparent`, `into`). A custom `Serialize` must use the
    /// same names.
    const SENSITIVE: &'static [&'static str] = &[];

    /// The descriptor of this value, a member of [`Self::DESCRIPTORS`].
    fn descriptor(&self) -> &'static EventDescriptor;

    /// The aggregate's id.
    fn aggregate_id(&self) -> AggregateId;

    /// A business key that must not be recorded twice, if any.
    fn dedup_key(&self) -> Option<String>;

    /// Encodes the payload. Default: JSON, or the codec named by the derive attribute `codec`.
    ///
    /// # Errors
    ///
    /// Any error of the codec.
    fn encode(&self) -> Result<Payload, CodecError> {
        payload::with::<Json, Self>(self)
    }
}

/// Static properties of an event type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventDescriptor {
    /// Aggregate type (`order`).
    pub aggregate: &'static str,
    /// Event name (`placed`).
    pub name: &'static str,
    /// Payload version, from 1.
    pub version: u32,
    /// Fixed subject, if any.
    pub subject: Option<&'static str>,
    /// Whether messages of this type are numbered and ordered.
    pub sequenced: bool,
    /// Rust type or variant, for errors and variant checks. Never stored or sent.
    pub rust_type: &'static str,
    /// Source file, for errors.
    pub file: &'static str,
    /// Line in `file`.
    pub line: u32,
}

/// Matches any name.
const ANY: &str = "*";

/// Pattern descriptors. Version 0 selects messages of any version, for handlers of undecoded
/// messages.
impl EventDescriptor {
    /// Selects every message.
    pub const EVERYTHING: Self = Self::of_type(ANY, ANY);

    /// Selects all versions of one event type.
    #[must_use]
    pub const fn of_type(aggregate: &'static str, name: &'static str) -> Self {
        Self {
            aggregate,
            name,
            version: 0,
            subject: None,
            sequenced: true,
            rust_type: "",
            file: "",
            line: 0,
        }
    }

    /// Selects all event types of an aggregate type.
    #[must_use]
    pub const fn of_aggregate(aggregate: &'static str) -> Self {
        Self::of_type(aggregate, ANY)
    }

    /// Whether the descriptor is a pattern.
    #[must_use]
    pub const fn is_selection(&self) -> bool {
        self.version == 0
    }

    /// Whether the descriptor selects every message.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.is_selection() && self.aggregate == ANY
    }

    /// Whether the descriptor selects one aggregate type.
    #[must_use]
    pub fn is_whole_aggregate(&self) -> bool {
        self.is_selection() && self.name == ANY && self.aggregate != ANY
    }

    /// Whether the descriptor selects messages of this event type.
    #[must_use]
    pub fn selects(&self, event_type: &str) -> bool {
        let is = |known: &str, found: &str| known == found || (self.is_selection() && known == ANY);
        self.is_everything()
            || event_type
                .split_once('.')
                .is_some_and(|(aggregate, name)| is(self.aggregate, aggregate) && is(self.name, name))
    }

    /// The event type: `aggregate.name`.
    #[must_use]
    pub fn event_type(&self) -> String {
        format!("{}.{}", self.aggregate, self.name)
    }
}

/// Id of an aggregate, as text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AggregateId(String);

impl AggregateId {
    /// An id from any text; recording checks the text.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// Borrows the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The owned text.
    #[must_use]
    pub fn into_string(self) -> String {
        self.0
    }
}

impl fmt::Display for AggregateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An aggregate key: UUIDs, strings, integers, and newtypes over them.
///
/// Equal keys must give the same text forever. For a newtype:
///
/// ```
/// use outbox_core::{AggregateId, ToAggregateId};
///
/// struct OrderId(u64);
/// impl ToAggregateId for OrderId {
///     fn to_aggregate_id(&self) -> AggregateId {
///         self.0.to_aggregate_id()
///     }
/// }
/// assert_eq!(OrderId(7).to_aggregate_id().as_str(), "7");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the id of an aggregate",
    label = "expected a UUID, a string, an integer, or a newtype over one of them",
    note = "for a newtype write `impl ToAggregateId for {Self} {{ fn to_aggregate_id(&self) -> AggregateId {{ self.0.to_aggregate_id() }} }}`"
)]
pub trait ToAggregateId {
    /// The key as text.
    fn to_aggregate_id(&self) -> AggregateId;
}

macro_rules! to_aggregate_id_by_display {
    ($($ty:ty),*) => {$(
        impl ToAggregateId for $ty {
            fn to_aggregate_id(&self) -> AggregateId {
                AggregateId(self.to_string())
            }
        }
    )*};
}

to_aggregate_id_by_display!(
    String, str, Uuid, i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize
);

impl ToAggregateId for AggregateId {
    fn to_aggregate_id(&self) -> AggregateId {
        self.clone()
    }
}

impl<T: ToAggregateId + ?Sized> ToAggregateId for &T {
    fn to_aggregate_id(&self) -> AggregateId {
        (**self).to_aggregate_id()
    }
}
