//! The registry of relays: announcements for other relays and for operators.
//!
//! Invariant: a registration is a statement of its relay, not a proof.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::publisher::{Destination, FailureClass};
use crate::relay::Retention;

/// The identity of a relay, new at each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(Uuid);

impl OwnerId {
    /// A new identity.
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

/// Restores a stored identity.
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

/// How well a relay works, by its own announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fitness {
    /// Its publisher has succeeded within half a lease duration.
    Fit,
    /// Nothing to publish, so no proof.
    #[default]
    Unproven,
    /// The relay was ailing and is retrying.
    Trying,
    /// For a full lease duration, it could not reach the broker, fetch or settle.
    Ailing,
}

impl Fitness {
    /// All values, by number.
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

    /// The stored number of this value.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// Number of live relays by fitness.
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
    /// Relays with another [`Destination`] than the caller.
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

/// The source of a relay's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RelayMode {
    /// Polls the table.
    #[default]
    Polling,
    /// Reads the database log, and polls the table for the rest.
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

/// The settings that a relay registers. Only [`Destination::instance`] may change while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Registration {
    /// The source of the messages.
    pub mode: RelayMode,
    /// Destination and source, if stated.
    pub destination: Option<Destination>,
    /// Retention of published messages, if stated.
    pub retention: Option<Retention>,
    /// Version of `outbox-core`, if stated.
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

    /// Replaces the version, for stores.
    #[must_use]
    pub fn of_version(mut self, version: Option<String>) -> Self {
        self.version = version;
        self
    }
}

/// The component that causes a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TroubleClass {
    /// Fetching, settling or renewing fails.
    Database,
    /// The broker confirms no message.
    Broker(FailureClass),
}

impl TroubleClass {
    /// The class as a stored word: `database`, or the broker's failure class.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Broker(class) => class.as_str(),
        }
    }

    /// Parses a stored word; `None` if unknown.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        let broker = FailureClass::ALL.into_iter().map(Self::Broker);
        std::iter::once(Self::Database)
            .chain(broker)
            .find(|class| class.as_str() == word)
    }
}

/// A failure since the last success of the same activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayTrouble {
    /// The failed component.
    pub class: TroubleClass,
    /// The last error, passed through [`storable_error`](super::storable_error) by stores.
    pub error: String,
    /// Duration when announced or read.
    pub failing_for: Duration,
}

/// The announcement with each lease renewal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Announcement {
    /// How well the relay works.
    pub fitness: Fitness,
    /// The settings of the relay.
    pub registration: Arc<Registration>,
    /// The current failure, if any.
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

/// A live relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRelay {
    /// The identity, new at each start.
    pub owner: OwnerId,
    /// The configured name, by default host and process id; not unique. `None` if the store keeps
    /// no names.
    pub name: Option<String>,
    /// The fitness that the relay announced.
    pub fitness: Fitness,
    /// Time until it counts as dead without a new announcement.
    pub expires_in: Duration,
    /// The settings of the relay.
    pub registration: Registration,
    /// The failure in the last announcement, if any.
    pub trouble: Option<RelayTrouble>,
}

/// A relay with an expired announcement: crashed, suspended, or unable to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredRelay {
    /// The identity.
    pub owner: OwnerId,
    /// As [`LiveRelay::name`].
    pub name: Option<String>,
    /// Time since the announcement expired.
    pub expired_for: Duration,
    /// The settings of the relay.
    pub registration: Registration,
    /// The failure in the last announcement, if any.
    pub trouble: Option<RelayTrouble>,
}
