//! Domain events.
//!
//! Invariant: every stored or sent name is written in the source of the event, never derived from a
//! Rust identifier.

use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use crate::payload::{self, CodecError, Json, Payload};

/// A fact of the business domain that is published to other services.
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
/// plus an entry in the [`Catalogue`](crate::Catalogue).
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
/// | `codec = Cbor` | type | optional: a [`Codec`](crate::payload::Codec); default [`Json`] |
/// | `crate = path` | type | path of `outbox_core`, if not a dependency |
///
/// `dedup_key` accepts any type with `Display`. A second message with the key is rejected for 7
/// days (`RelayConfig::dedup_key_retention`), whatever its event type or the state of the first
/// message. So make the event's name part of the key.
///
/// On an enum each variant is one event: `aggregate` is on the enum, `name` on the variants. A
/// handler of an enum receives all variants. Choose a stable serde representation that
/// distinguishes the variants: a payload that decodes to another variant than the message names
/// becomes a dead letter.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a domain event",
    label = "this type has no `DomainEvent` implementation",
    note = "add `#[derive(DomainEvent)]` and `#[domain_event(aggregate = \"…\", name = \"…\")]` to `{Self}`"
)]
pub trait DomainEvent: Serialize + Send + Sync + 'static {
    /// One descriptor for a struct, one per variant for an enum.
    const DESCRIPTORS: &'static [EventDescriptor];

    /// Names of the sensitive fields of all variants, as in the payload, for masking by
    /// [`SensitiveFields`](crate::SensitiveFields). Stored, sent and handled unmasked. Default:
    /// none.
    ///
    /// The derive uses all names that serde reads or writes, and fails where these are unknown
    /// (`flatten`, tuples, `transparent`, `into` and the like). A custom `Serialize` must use the
    /// same names.
    const SENSITIVE: &'static [&'static str] = &[];

    /// The descriptor of this value; one of [`Self::DESCRIPTORS`].
    fn descriptor(&self) -> &'static EventDescriptor;

    /// The id of the aggregate.
    fn aggregate_id(&self) -> AggregateId;

    /// A business key that must not be recorded twice, if any.
    fn dedup_key(&self) -> Option<String>;

    /// The payload. Default: JSON, or the codec of the key `codec`.
    ///
    /// # Errors
    ///
    /// Any error of the codec.
    fn encode(&self) -> Result<Payload, CodecError> {
        payload::with::<Json, Self>(self)
    }
}

/// The static properties of one event type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventDescriptor {
    /// Type of the aggregate, for example `order`.
    pub aggregate: &'static str,
    /// Name within the aggregate, for example `placed`.
    pub name: &'static str,
    /// Version of the payload's shape, starting at 1.
    pub version: u32,
    /// A fixed subject that replaces the default one.
    pub subject: Option<&'static str>,
    /// Whether messages are numbered and ordered.
    pub sequenced: bool,
    /// Path of the Rust type or variant, for errors and for distinguishing decoded variants. Never
    /// stored or sent.
    pub rust_type: &'static str,
    /// Source file of the type, for errors.
    pub file: &'static str,
    /// Line in [`Self::file`].
    pub line: u32,
}

/// Matches any name in a selection.
const ANY: &str = "*";

/// A descriptor with version 0 selects messages of any version, for handlers of undecoded messages.
impl EventDescriptor {
    /// Selects every message on the stream.
    pub const EVERYTHING: Self = Self::of_type(ANY, ANY);

    /// Selects one event type, in any version.
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

    /// Whether this is a selection.
    #[must_use]
    pub const fn is_selection(&self) -> bool {
        self.version == 0
    }

    /// Whether this selects every message on the stream.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.is_selection() && self.aggregate == ANY
    }

    /// Whether this selects one aggregate type.
    #[must_use]
    pub fn is_whole_aggregate(&self) -> bool {
        self.is_selection() && self.name == ANY && self.aggregate != ANY
    }

    /// Whether this matches messages of the event type.
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

/// The id of an aggregate: the text form of its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AggregateId(String);

impl AggregateId {
    /// Accepts any text; recording checks length and characters.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id as an owned string.
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

/// A key that can name an aggregate: UUIDs, strings, integers, and newtypes over them.
///
/// Equal keys must always give the same text, because it is stored and sent. For a newtype:
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
    /// The text form of the key.
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

// No floats (no stable text) and no booleans (they identify nothing).
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
