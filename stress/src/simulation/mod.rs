//! The simulation: the relay's own code over an in-memory store and broker, on a paused clock, with
//! repeatable faults.
//!
//! - The seed determines relays, writers and their settings.
//! - The seed determines the duration and fault of each call.
//! - The seed determines when relays crash, pause, or are cut off.
//! - The seed determines lost messages, unknown commit outcomes, rejected settlements, and clock
//!   jumps.
//! - Every fourth simulated world has a log, and every third has pauses.
//! - The seed determines operator actions, drains, purges and reconciliation.
//!
//! After the faults, every committed message must be published. [`Invariant`] lists the properties,
//! [`Wrong`] the planted mistakes.

mod broker;
mod checker;
mod faults;
mod history;
mod log;
mod maintenance;
mod pauses;
mod plan;
mod relays;
mod store;
mod world;
mod writers;
mod wrong;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use wrong::Wrong;

/// The properties that must always hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Invariant {
    /// Every committed message is on the stream or a visible dead letter. A settled message has
    /// been on the stream. Purges respect the retention. Reconciliation restores lost messages that
    /// the outbox keeps.
    NoLoss,
    /// Every message on the stream was committed, once and with the same content.
    NoGhost,
    /// First appearances per aggregate are in commit order, and not before their time. A relay has
    /// at most one message of an aggregate in flight.
    Order,
    /// The store rejects settlements with a stale lease epoch, and accepts settlements with a
    /// current one.
    Fence,
    /// A partition has one owner, and only this owner starts sending its messages, unless the
    /// store's clock jumps.
    Exclusive,
    /// A message is sent again only for a reason, such as a crash or an error. The stream stores it
    /// again only if the broker has forgotten its id. Reconciliation sends only lost messages.
    Duplicates,
    /// No paused message is sent later than half of `lease_ttl` after the pause begins, except by
    /// reconciliation. Ended pauses are removed.
    Paused,
    /// After the faults, every message is published in bounded time, even if a relay stays cut off.
    /// A drain leaves no due message. A shutdown ends in time.
    Progress,
    /// Only a broker's rejection of the message itself uses an attempt or makes it a dead letter.
    Attempts,
    /// At the end no message waits and no aggregate is blocked.
    Hygiene,
    /// No code panics.
    NoPanic,
}

/// The result of one seed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// A digest of the history.
    pub digest: u64,
    /// Number of committed messages.
    pub messages: usize,
    /// Simulated milliseconds from the end of the faults until every message was published.
    pub drained_ms: u64,
    /// The first violation and its description.
    pub violation: Option<(Invariant, String)>,
    /// The last lines of the history.
    pub history: Vec<String>,
    wrong: Wrong,
}

impl Outcome {
    #[must_use]
    /// The command that repeats this seed.
    pub fn replay(&self) -> String {
        let wrong = match self.wrong {
            Wrong::None => String::new(),
            wrong => format!(" --wrong {wrong}"),
        };
        format!(
            "cargo xtask simulate --from {} --seeds 1 --trace{wrong}",
            self.seed
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.history {
            writeln!(f, "{line}")?;
        }
        match &self.violation {
            Some((invariant, what)) => write!(
                f,
                "seed {}: {invariant:?}: {what}\nrepeat: {}",
                self.seed,
                self.replay()
            ),
            None => write!(
                f,
                "seed {}: {} messages, drained in {} ms, history {:016x}",
                self.seed, self.messages, self.drained_ms, self.digest
            ),
        }
    }
}

/// History lines shown for a failure.
pub const TAIL: usize = 40;

/// Runs the world of one seed and keeps the last `lines` lines of its history. Blocks; must not be
/// called within a Tokio runtime.
#[must_use]
pub fn simulate(seed: u64, wrong: Wrong, lines: usize) -> Outcome {
    let _isolation = outbox_core::wake::isolate();
    let lived = catch_unwind(AssertUnwindSafe(|| world::live(seed, wrong, lines)));
    lived.unwrap_or_else(|_| Outcome {
        seed,
        digest: 0,
        messages: 0,
        drained_ms: 0,
        violation: Some((Invariant::NoPanic, "the world panicked; see above".to_owned())),
        history: Vec::new(),
        wrong,
    })
}
