//! Pauses: an operator stops publishing of all messages, or of one aggregate type.
//!
//! * **In force within a third of a lease.** A relay reads the pauses before each lease renewal
//!   (default 5 s) and before it acquires its first partition. If it cannot, it renews nothing, and
//!   stops sending after half of `RelayConfig::lease_ttl`.
//! * **Sent messages complete**: they are confirmed and settled.
//! * **No message is lost.** A pause counts no attempt or failure, and keeps order.
//! * **Valid for all relays**, including later relays, until an operator ends it or it expires by
//!   the store's clock.
//!
//! Invariant: relays set paused messages aside ([`Verdict::Paused`](super::Verdict::Paused)), and
//! an ended pause is removed only with the last message it holds. So no crash leaves a held message
//! without its pause.

use std::time::Duration;

use time::OffsetDateTime;

/// Wait of a message if its pause has just ended.
pub const UNPAUSED_WAIT: Duration = Duration::from_secs(1);

/// A requested pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseRequest {
    /// `None` for all messages.
    pub aggregate_type: Option<String>,
    /// Bounded by [`storable_error`](super::storable_error).
    pub reason: String,
    /// The actor; bounded likewise.
    pub by: String,
    /// By the store's clock, at most a century; `None`: until an operator ends it.
    pub lasts: Option<Duration>,
}

/// A stored pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// `None` for all messages.
    pub aggregate_type: Option<String>,
    /// The reason.
    pub reason: String,
    /// The actor.
    pub by: String,
    /// By the store's clock.
    pub since: OffsetDateTime,
    /// Time left; zero: ended, its messages are being released. `None`: until an operator ends it.
    pub ends_in: Option<Duration>,
}

impl Pause {
    /// Still in force.
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
