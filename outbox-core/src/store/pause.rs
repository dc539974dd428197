//! Pauses: publishing that an operator has stopped for a while, without a deploy.
//!
//! A pause holds for all messages of an outbox, or for all aggregates of one type. There is none of an event type: to keep the order of an aggregate, it
//! would have to hold back the later messages of each aggregate as well, so that what it holds would depend on what came before.
//!
//! # What a pause means
//!
//! * **Effective within a lease.** A relay reads the pauses before it takes a partition while it owns none, and before each renewal of its leases. So a pause is known
//!   to a relay after a third of `RelayConfig::lease_ttl` (default 5 s), while the store answers at once. A relay that cannot read the pauses renews nothing,
//!   and sends nothing once half of `lease_ttl` is over.
//! * **What is on its way is finished.** A message that was sent before is confirmed and settled as always. Nothing else of the pause's scope is sent.
//! * **Nothing is lost.** No message becomes a dead letter by a pause, no attempt and no failure is counted, and order is kept.
//! * **It holds for all relays**, those that start later included, until it is ended by an operator, or by its own end on the store's clock.
//!
//! Invariant: what a pause holds back is held by a row that stands. Messages of a paused aggregate type are set aside as the relay meets them
//! ([`Verdict::Paused`](super::Verdict::Paused)), and a pause that has ended is removed only together with the last of what it held. So a crash at any moment
//! leaves nothing held that nobody releases.

use std::time::Duration;

use time::OffsetDateTime;

/// How long a message waits that a relay takes for paused although its pause has ended.
pub const UNPAUSED_WAIT: Duration = Duration::from_secs(1);

/// What an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseRequest {
    /// Only aggregates of this type; `None` for all messages of the outbox.
    pub aggregate_type: Option<String>,
    /// Why, for people; bounded as error texts are ([`storable_error`](super::storable_error)).
    pub reason: String,
    /// Who, for people; bounded in the same way.
    pub by: String,
    /// After this time on the store's clock the pause ends by itself; `None`: only an operator ends it. At most a century.
    pub lasts: Option<Duration>,
}

/// A pause, as the store holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// Only aggregates of this type; `None` for all messages of the outbox.
    pub aggregate_type: Option<String>,
    /// Why.
    pub reason: String,
    /// Who began it.
    pub by: String,
    /// When it began, by the store's clock.
    pub since: OffsetDateTime,
    /// The time until it ends by itself. Zero: it has ended, and what it held is being released. `None`: only an operator ends it.
    pub ends_in: Option<Duration>,
}

impl Pause {
    /// Whether it holds something back. Otherwise it has ended.
    #[must_use]
    pub fn stands(&self) -> bool {
        self.ends_in != Some(Duration::ZERO)
    }

    /// What it holds back, in words.
    #[must_use]
    pub fn scope(&self) -> String {
        match &self.aggregate_type {
            Some(aggregate_type) => format!("aggregates of type {aggregate_type}"),
            None => "all messages".to_owned(),
        }
    }
}
