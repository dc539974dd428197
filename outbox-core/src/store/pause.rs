//! Pauses: an operator stops publishing of all messages, or of one aggregate type.
//!
//! * **In force within a third of a lease.** A relay reads the pauses before each lease renewal
//!   (default 5 s) and before it acquires its first partition. If the read fails, the relay renews
//!   no lease, and stops sending after half of `RelayConfig::lease_ttl`.
//! * **Sent messages complete**: the relay waits for their confirmation and settles them.
//! * **No message is lost.** A pause counts no attempt or failure, and keeps order.
//! * **Valid for all relays**, including later relays, until an operator ends the pause or it
//!   expires by the store's clock.
//!
//! Invariant: relays set paused messages aside ([`Verdict::Paused`](super::Verdict::Paused)). An
//! ended pause is removed only together with the last message that it holds. So no crash leaves a
//! held message without its pause.

use std::time::Duration;

use time::OffsetDateTime;

/// Wait of a message whose pause has just ended.
pub const UNPAUSED_WAIT: Duration = Duration::from_secs(1);

/// A requested pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseRequest {
    /// Aggregate type; `None`: all messages.
    pub aggregate_type: Option<String>,
    /// The reason; bounded by [`storable_error`](super::storable_error).
    pub reason: String,
    /// Actor; bounded as `reason`.
    pub by: String,
    /// Duration by the store's clock, at most a century; `None`: until an operator ends the pause.
    pub lasts: Option<Duration>,
}

/// A stored pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// Aggregate type; `None`: all messages.
    pub aggregate_type: Option<String>,
    /// The reason.
    pub reason: String,
    /// The actor.
    pub by: String,
    /// Start by store clock.
    pub since: OffsetDateTime,
    /// Time until the pause ends. Zero: it has ended, and its messages are being released. `None`:
    /// until an operator ends it.
    pub ends_in: Option<Duration>,
}

impl Pause {
    /// Whether still in force.
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
