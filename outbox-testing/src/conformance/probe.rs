//! The events and messages of the suites, outside the event catalogue of the tested program.

use bytes::Bytes;
use outbox_core::event::{AggregateId, DomainEvent, EventDescriptor};
use outbox_core::headers::Headers;
use outbox_core::message::{Aggregate, Message, MessageId};
use serde::{Deserialize, Serialize};

/// The aggregate type.
pub const AGGREGATE: &str = "probe";

/// The event of the suites: `probe.noted`, `probe.observed` or `probe.sampled` (unsequenced).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    id: String,
    n: u64,
    filler: String,
    #[serde(skip)]
    kind: usize,
    #[serde(skip)]
    dedup_key: Option<String>,
}

impl Probe {
    /// A `probe.noted`; `n` distinguishes probes.
    pub fn noted(id: impl Into<String>, n: u64) -> Self {
        Self {
            id: id.into(),
            n,
            filler: String::new(),
            kind: 0,
            dedup_key: None,
        }
    }

    /// A `probe.observed`.
    pub fn observed(id: impl Into<String>, n: u64) -> Self {
        Self {
            kind: 1,
            ..Self::noted(id, n)
        }
    }

    /// A `probe.sampled`.
    pub fn sampled(id: impl Into<String>, n: u64) -> Self {
        Self {
            kind: 2,
            ..Self::noted(id, n)
        }
    }

    /// Sets the deduplication key.
    #[must_use]
    pub fn with_dedup_key(self, key: impl Into<String>) -> Self {
        Self {
            dedup_key: Some(key.into()),
            ..self
        }
    }

    /// Adds text to the payload.
    #[must_use]
    pub fn with_filler(self, filler: impl Into<String>) -> Self {
        Self {
            filler: filler.into(),
            ..self
        }
    }

    /// The number that distinguishes this probe.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.n
    }
}

const fn descriptor(name: &'static str, sequenced: bool, line: u32) -> EventDescriptor {
    EventDescriptor {
        aggregate: AGGREGATE,
        name,
        version: 1,
        subject: None,
        sequenced,
        rust_type: "outbox_testing::conformance::probe::Probe",
        file: file!(),
        line,
    }
}

impl DomainEvent for Probe {
    const DESCRIPTORS: &'static [EventDescriptor] = &[
        descriptor("noted", true, line!()),
        descriptor("observed", true, line!()),
        descriptor("sampled", false, line!()),
    ];

    fn descriptor(&self) -> &'static EventDescriptor {
        &Self::DESCRIPTORS[self.kind]
    }

    fn aggregate_id(&self) -> AggregateId {
        AggregateId::new(self.id.clone())
    }

    fn dedup_key(&self) -> Option<String> {
        self.dedup_key.clone()
    }
}

impl outbox_core::payload::EventCodec for Probe {
    type Codec = outbox_core::payload::Json;
}

/// Descriptor of `probe.noted`.
pub const NOTED: &EventDescriptor = &Probe::DESCRIPTORS[0];

/// Descriptor of `probe.observed`.
pub const OBSERVED: &EventDescriptor = &Probe::DESCRIPTORS[1];

/// The probe aggregate with this id.
pub fn aggregate(id: impl Into<String>) -> Aggregate {
    Aggregate::new(AGGREGATE, id)
}

/// A message with a fresh id, as stored in an outbox.
#[must_use]
pub fn message(descriptor: &EventDescriptor, aggregate_id: &str, sequence: u64) -> Message {
    let id = MessageId::fresh();
    Message {
        id,
        event_id: id.into(),
        aggregate: aggregate(aggregate_id),
        sequence: Some(sequence),
        event_type: descriptor.event_type(),
        event_version: descriptor.version,
        subject: None,
        content_type: outbox_core::message::JSON.to_owned(),
        payload: Bytes::from(format!("{{\"n\":{sequence}}}")),
        headers: Headers::default(),
        created_at: time::macros::datetime!(2026-01-02 03:04:05.678901 UTC),
    }
}

/// Aggregate ids that some collations treat as equal or some brokers interpret. The ids must stay
/// distinct.
#[must_use]
pub fn odd_aggregate_ids() -> Vec<String> {
    let plain = [
        "a", "A", "a ", " a", "a.b", "a..b", "a b", "*", "a.*", ">", "$JS.x", "a/b", "a\\b", "a'b", "a\"b",
        "a%b", "a%20b", "a_b", "a-b", "ä", "ü", "Ü", "ß", "ss", "a\n", "a\tb", "😀", "😁", "0", "00", "1e0",
    ];
    let invisible = ["a\u{308}", "a\u{200b}"];
    let long = [String::from("x").repeat(255), "ü".repeat(255), "😀".repeat(255)];
    plain
        .into_iter()
        .chain(invisible)
        .map(str::to_owned)
        .chain(long)
        .collect()
}
