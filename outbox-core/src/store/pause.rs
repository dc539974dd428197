//! Pauses: an operator stops publishing temporarily, without a deploy.
//!
//! A pause covers all messages of an outbox, or all aggregates of one type. There are no pauses of
//! an event type, because they would also hold back later messages of each aggregate.
//!
//! # Guarantees
//!
//! * **In force within a third of a lease.** A relay reads the pauses before each lease renewal,
//!   and before it acquires its first partition. With an answering store, that is after a third of
//!   `RelayConfig::lease_ttl` (default 5 s). A relay that cannot read the pauses renews nothing,
//!   and stops sending after half of `lease_ttl`.
//! * **Sent messages complete.** A message sent before is confirmed and settled. Nothing else in
//!   the scope of the pause is sent.
//! * **No message is lost.** A pause causes no dead letter, counts no attempt and no failure, and
//!   keeps order.
//! * **Valid for all relays**, including later ones, until an operator ends it or it expires by the
//!   store's clock.
//!
//! Invariant: paused messages are set aside when relays meet them
//! ([`Verdict::Paused`](super::Verdict::Paused)), and an ended pause is removed only with the last
//! message it holds. So after a crash, every held message still has a pause that releases it.

use std::time::Duration;

use time::OffsetDateTime;

/// How long a message waits if a relay takes it for paused after the pause has ended.
pub const UNPAUSED_WAIT: Duration = Duration::from_secs(1);

/// The pause that an operator requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseRequest {
    /// Only aggregates of this type; `None` for all messages of the outbox.
    pub aggregate_type: Option<String>,
    /// The reason, for people; bounded by [`storable_error`](super::storable_error).
    pub reason: String,
    /// The actor, for people; bounded in the same way.
    pub by: String,
    /// Duration by the store's clock, at most a century; `None`: until an operator ends it.
    pub lasts: Option<Duration>,
}

/// A stored pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// Only aggregates of this type; `None` for all messages of the outbox.
    pub aggregate_type: Option<String>,
    /// The reason.
    pub reason: String,
    /// The actor.
    pub by: String,
    /// Start, by the store's clock.
    pub since: OffsetDateTime,
    /// Time until it expires. Zero: it has ended, and its messages are being released. `None`:
    /// until an operator ends it.
    pub ends_in: Option<Duration>,
}

impl Pause {
    /// Whether the pause is in force.
    #[must_use]
    pub fn stands(&self) -> bool {
        self.ends_in != Some(Duration::ZERO)
    }

    /// The scope in words.
    #[must_use]
    pub fn scope(&self) -> String {
        match &self.aggregate_type {
            Some(aggregate_type) => format!("aggregates of type {aggregate_type}"),
            None => "all messages".to_owned(),
        }
    }
}
