//! The registry of relays: announcements for other relays and for operators.
//!
//! Invariant: a registration only repeats the relay's own statement. It proves nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::publisher::{Destination, FailureClass};
use crate::relay::Retention;

/// Identity of a relay, new at each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(Uuid);

impl OwnerId {
    /// A new identity.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// The UUID.
    #[must_use]
    pub fn as_uuid(&self) -> Uuid {
        self.0
    }
}

/// Restores an identity.
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

/// Health as announced by a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RelayHealth {
    /// Published successfully within half a lease duration.
    Healthy,
    /// Nothing to publish, so no proof.
    #[default]
    Unknown,
    /// Was unhealthy and is retrying.
    Recovering,
    /// For a full lease duration, it could not reach the broker, fetch or settle.
    Unhealthy,
}

impl RelayHealth {
    /// All values, sorted by stored number.
    pub const ALL: [Self; 4] = [Self::Healthy, Self::Unknown, Self::Recovering, Self::Unhealthy];

    /// A lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Unknown => "unknown",
            Self::Recovering => "recovering",
            Self::Unhealthy => "unhealthy",
        }
    }

    /// The stored number.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// Live relays by health.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Relays {
    /// Announced [`RelayHealth::Healthy`].
    pub healthy: u32,
    /// Announced [`RelayHealth::Unknown`].
    pub unknown: u32,
    /// Announced [`RelayHealth::Recovering`].
    pub recovering: u32,
    /// Live relays that announced [`RelayHealth::Unhealthy`].
    pub unhealthy: u32,
    /// Live relays with another [`Destination`] than the caller.
    pub disagreeing: u32,
}

impl Relays {
    /// Adds relays.
    pub fn count(&mut self, health: RelayHealth, relays: u32) {
        let counted = match health {
            RelayHealth::Healthy => &mut self.healthy,
            RelayHealth::Unknown => &mut self.unknown,
            RelayHealth::Recovering => &mut self.recovering,
            RelayHealth::Unhealthy => &mut self.unhealthy,
        };
        *counted = counted.saturating_add(relays);
    }

    /// Relays of any fitness.
    #[must_use]
    pub fn alive(&self) -> u32 {
        let all = [self.healthy, self.unknown, self.recovering, self.unhealthy];
        all.into_iter().fold(0, u32::saturating_add)
    }
}

/// A relay's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RelayMode {
    /// Polls the table.
    #[default]
    Polling,
    /// Reads the database log, and polls the table for other messages.
    Log,
}

impl RelayMode {
    /// A lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Log => "log",
        }
    }
}

/// Settings that a relay registers. Only [`Destination::instance`] may change while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Registration {
    /// Source of messages.
    pub mode: RelayMode,
    /// Destination, if stated.
    pub destination: Option<Destination>,
    /// Retention of published messages, if stated.
    pub retention: Option<Retention>,
    /// Version of `outbox-core`, if stated.
    pub version: Option<String>,
}

impl Registration {
    /// States this `outbox-core`'s version.
    #[must_use]
    pub fn new(mode: RelayMode, destination: Option<Destination>, retention: Option<Retention>) -> Self {
        Self {
            mode,
            destination,
            retention,
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        }
    }

    /// Replaces the version.
    #[must_use]
    pub fn of_version(mut self, version: Option<String>) -> Self {
        self.version = version;
        self
    }
}

/// The failing component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TroubleClass {
    /// Database: fetching, settling or renewing fails.
    Database,
    /// Broker: confirms no message.
    Broker(FailureClass),
}

impl TroubleClass {
    /// The text stored for the class: `database`, or the broker's failure class.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Broker(class) => class.as_str(),
        }
    }

    /// Parses a stored word.
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
    /// Last error, bounded by [`storable_error`](super::storable_error).
    pub error: String,
    /// How long the relay had been failing when the announcement was sent, or when the store was
    /// read.
    pub failing_for: Duration,
}

/// Health and settings that a relay sends to the store with each lease renewal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Announcement {
    /// Current health.
    pub health: RelayHealth,
    /// The relay's settings.
    pub registration: Arc<Registration>,
    /// Current failure.
    pub trouble: Option<RelayTrouble>,
}

/// An announcement with this health and without a registration.
impl From<RelayHealth> for Announcement {
    fn from(health: RelayHealth) -> Self {
        Self {
            health,
            ..Self::default()
        }
    }
}

/// A live relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRelay {
    /// Identity, new at each start.
    pub owner: OwnerId,
    /// Configured name, default host and process id; not unique. `None` if not stored.
    pub name: Option<String>,
    /// Announced health.
    pub health: RelayHealth,
    /// Time until it counts as dead.
    pub expires_in: Duration,
    /// The relay's settings.
    pub registration: Registration,
    /// Last announced failure.
    pub trouble: Option<RelayTrouble>,
}

/// A relay whose announcement expired: crashed, suspended, or unable to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredRelay {
    /// The relay's identity.
    pub owner: OwnerId,
    /// As [`LiveRelay::name`].
    pub name: Option<String>,
    /// Time since expiry.
    pub expired_for: Duration,
    /// The relay's settings.
    pub registration: Registration,
    /// Last announced failure.
    pub trouble: Option<RelayTrouble>,
}
