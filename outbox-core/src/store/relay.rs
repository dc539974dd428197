//! The registry of relays: what each relay announces of itself, for other relays and for operators.
//!
//! Invariant: a registration is a fact that its relay has stated, never a proof. A store keeps it until the announcement expires or the relay leaves.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::publisher::{Destination, FailureClass};
use crate::relay::Retention;

/// The identity of a relay: fresh at each start, so that a restarted process is never mistaken for its predecessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(Uuid);

impl OwnerId {
    /// A fresh identity.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// The identity as a UUID.
    #[must_use]
    pub fn as_uuid(&self) -> Uuid {
        self.0
    }
}

/// An identity as a store holds it.
impl From<Uuid> for OwnerId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A relay's announcement of how well it works, so that others can take over from one that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fitness {
    /// The relay has published successfully of late.
    Fit,
    /// The relay had nothing to publish: nothing failed, but nothing proves that publishing would succeed.
    #[default]
    Unproven,
    /// The relay was ailing and tries again.
    Trying,
    /// For as long as a lease lasts, the relay has not reached the broker, or could not fetch or settle.
    Ailing,
}

impl Fitness {
    /// All values, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Fit, Self::Unproven, Self::Trying, Self::Ailing];

    /// The value as a short lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fit => "fit",
            Self::Unproven => "unproven",
            Self::Trying => "trying",
            Self::Ailing => "ailing",
        }
    }

    /// The number that stores write for this value.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// Number of live relays, by the fitness that they announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Relays {
    /// Relays that announced [`Fitness::Fit`].
    pub fit: u32,
    /// Relays that announced [`Fitness::Unproven`].
    pub unproven: u32,
    /// Relays that announced [`Fitness::Trying`].
    pub trying: u32,
    /// Relays that announced [`Fitness::Ailing`].
    pub ailing: u32,
    /// Of all these, relays that registered another [`Destination`] than the one that asks.
    pub disagreeing: u32,
}

impl Relays {
    /// Adds relays that announced this fitness.
    pub fn count(&mut self, fitness: Fitness, relays: u32) {
        let counted = match fitness {
            Fitness::Fit => &mut self.fit,
            Fitness::Unproven => &mut self.unproven,
            Fitness::Trying => &mut self.trying,
            Fitness::Ailing => &mut self.ailing,
        };
        *counted = counted.saturating_add(relays);
    }

    /// Number of live relays of any fitness.
    #[must_use]
    pub fn alive(&self) -> u32 {
        let all = [self.fit, self.unproven, self.trying, self.ailing];
        all.into_iter().fold(0, u32::saturating_add)
    }
}

/// Where a relay finds the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RelayMode {
    /// The relay polls the table.
    #[default]
    Polling,
    /// The relay reads the database's log, and polls the table for the rest.
    Log,
}

impl RelayMode {
    /// The mode as a lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Log => "log",
        }
    }
}

/// What a relay does, as it registers it. Only [`Destination::instance`] may change while the relay
/// runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Registration {
    /// Where the relay finds the messages.
    pub mode: RelayMode,
    /// Where the relay publishes, and the source of its messages; `None` if the relay or its publisher does not state it.
    pub destination: Option<Destination>,
    /// What becomes of published messages; `None` if the relay does not state it.
    pub retention: Option<Retention>,
    /// The version of `outbox-core` in the relay's program; `None` if the relay does not state it.
    pub version: Option<String>,
}

impl Registration {
    /// A registration of this version of `outbox-core`.
    #[must_use]
    pub fn new(mode: RelayMode, destination: Option<Destination>, retention: Option<Retention>) -> Self {
        Self {
            mode,
            destination,
            retention,
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        }
    }

    /// The registration with another version, for a store that reads one.
    #[must_use]
    pub fn of_version(mut self, version: Option<String>) -> Self {
        self.version = version;
        self
    }
}

/// Whether a relay's present failure is the database's or the broker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TroubleClass {
    /// The relay cannot fetch, settle, or renew its leases.
    Database,
    /// The broker confirms no message, for this reason.
    Broker(FailureClass),
}

impl TroubleClass {
    /// The class as a lower-case word, as stores keep it: `database`, or the failure class of the broker.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Broker(class) => class.as_str(),
        }
    }

    /// The class of a stored word; `None` for a word of a newer version.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        let broker = FailureClass::ALL.into_iter().map(Self::Broker);
        std::iter::once(Self::Database)
            .chain(broker)
            .find(|class| class.as_str() == word)
    }
}

/// A failure of a relay that has lasted since the last success of the same activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayTrouble {
    /// Whose failure it is.
    pub class: TroubleClass,
    /// The last error, for people. Stores pass it through [`storable_error`](super::storable_error).
    pub error: String,
    /// How long it has lasted when it is announced or read.
    pub failing_for: Duration,
}

/// What a relay announces with each renewal of its leases.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Announcement {
    /// How well the relay works.
    pub fitness: Fitness,
    /// What the relay does.
    pub registration: Arc<Registration>,
    /// What keeps the relay from its work at present.
    pub trouble: Option<RelayTrouble>,
}

/// An announcement without a registration.
impl From<Fitness> for Announcement {
    fn from(fitness: Fitness) -> Self {
        Self {
            fitness,
            ..Self::default()
        }
    }
}

/// A relay that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRelay {
    /// Its identity, which is new at each start.
    pub owner: OwnerId,
    /// What it calls itself: its host and process id, unless it was given a name; `None` if its store keeps none. Several relays may have the same.
    pub name: Option<String>,
    /// How well it works, by its own word.
    pub fitness: Fitness,
    /// The time until it counts as dead, unless it announces itself again.
    pub expires_in: Duration,
    /// What it does.
    pub registration: Registration,
    /// What keeps it from its work, by its last announcement.
    pub trouble: Option<RelayTrouble>,
}

/// A relay whose announcement has expired: it has died, is suspended, or cannot write to the database. A relay that stops in order leaves no such trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredRelay {
    /// Its identity.
    pub owner: OwnerId,
    /// As [`LiveRelay::name`].
    pub name: Option<String>,
    /// How long ago the announcement expired.
    pub expired_for: Duration,
    /// What it did.
    pub registration: Registration,
    /// What kept it from its work, by its last announcement.
    pub trouble: Option<RelayTrouble>,
}
