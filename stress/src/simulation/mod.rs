//! The simulation: the relay's own code over store and broker in memory, on a paused clock, with every kind of fault,
//! repeatably.
//!
//! One seed decides everything:
//!
//! * the number of relays and writers, and their settings,
//! * the duration and the fault of each call; calls of crashed relays may still arrive,
//! * the await at which a relay crashes or pauses, and the relays that are cut off from broker or store,
//! * the messages that the stream loses, the commits whose outcome writers do not learn, the verdicts that the store
//!   refuses,
//! * the clocks that jump,
//! * in one world of four the log that the relays read: its readings that break, its loss, and its commits that cannot
//!   be seen in the table yet,
//! * in one world of three the pauses of publishing, of everything and of one of two aggregate types,
//! * the acts of operators, and the times of drains, purges and reconciling.
//!
//! When the faults end, every committed message must come out. [`Invariant`] lists the properties that must have held
//! throughout. [`Wrong`] plants mistakes, which the simulation must find. [`minimise`] takes from a world that fails
//! whatever does not matter.
//!
//! Invariant of this module: only the seed decides, so every failure can be repeated.

mod broker;
mod checker;
mod faults;
mod history;
mod log;
mod maintenance;
mod minimise;
mod pauses;
mod plan;
mod relays;
mod store;
mod world;
mod writers;
mod wrong;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use minimise::{Without, minimise};
pub use wrong::Wrong;

/// The properties that must hold whatever happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Invariant {
    /// Every committed message is on the stream or visibly dead. A message settled as published has been on the stream.
    /// Only messages published long enough ago are purged. A message that the stream loses is there again after
    /// reconciling, if the outbox still keeps it.
    NoLoss,
    /// Every message on the stream was committed, with the same content, and once, however often its writer tried.
    NoGhost,
    /// Per aggregate, first appearances on the stream are in the order of commits, without gaps except for skipped
    /// messages. No message appears before its time. A relay has at most one message of an aggregate in flight to the
    /// broker.
    Order,
    /// No verdict is accepted under a stale epoch, and none is refused under a live one.
    Fence,
    /// A partition has one owner at a time, and no other relay begins to send its messages, unless the store's clock was
    /// set forward.
    Exclusive,
    /// A message is sent again only for a reason, once for each reason, and is stored again only if the broker has
    /// forgotten its id. Reconciling sends no message that is on the stream.
    Duplicates,
    /// Nothing is sent that is paused, from half of `lease_ttl` after the beginning of the pause on. Reconciling is not
    /// paused. When the pauses have ended, none is left in the store.
    Paused,
    /// When the faults end, every message comes out in bounded time, even if one relay of several stays cut off from
    /// broker or store: first the messages of aggregates without poison, then the rest. A drain leaves no due message
    /// and none in flight. A shutdown ends in time.
    Progress,
    /// Only refusals that are the message's own fault use attempts or dead-letter it.
    Attempts,
    /// In the end no message waits and no aggregate is blocked.
    Hygiene,
    /// Nothing panics.
    NoPanic,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoLoss => "L no loss",
            Self::NoGhost => "G no ghost",
            Self::Order => "P order",
            Self::Fence => "F fence",
            Self::Exclusive => "X exclusive",
            Self::Duplicates => "D bounded duplicates",
            Self::Paused => "S paused",
            Self::Progress => "T progress",
            Self::Attempts => "A attempts",
            Self::Hygiene => "H hygiene",
            Self::NoPanic => "no panic",
        })
    }
}

/// The result of one seed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// A digest that is equal for equal histories.
    pub digest: u64,
    /// Number of committed messages.
    pub messages: usize,
    /// Milliseconds of simulated time from the end of the faults until everything was out.
    pub drained_ms: u64,
    /// The first violation and its description.
    pub violation: Option<(Invariant, String)>,
    /// The last lines of the history.
    pub history: Vec<String>,
    wrong: Wrong,
    without: Without,
}

impl Outcome {
    /// The command that repeats this seed.
    #[must_use]
    pub fn replay(&self) -> String {
        let wrong = match self.wrong {
            Wrong::None => String::new(),
            wrong => format!(" --wrong {wrong}"),
        };
        let without = match self.without {
            Without::NOTHING => String::new(),
            without => format!(" --without {without}"),
        };
        format!(
            "cargo xtask simulate --from {} --seeds 1 --trace{wrong}{without}",
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
                "seed {}: {invariant}: {what}\nrepeat: {}",
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

/// The number of lines of history that a failure shows.
pub const TAIL: usize = 40;

/// Runs the world of one seed and keeps the last `lines` lines of its history. Blocks; must not be called from within a
/// Tokio runtime.
#[must_use]
pub fn simulate(seed: u64, wrong: Wrong, lines: usize) -> Outcome {
    simulate_without(seed, wrong, Without::NOTHING, lines)
}

/// As [`simulate`], without some of what the seed would bring.
#[must_use]
pub fn simulate_without(seed: u64, wrong: Wrong, without: Without, lines: usize) -> Outcome {
    let _isolation = outbox_core::wake::isolate();
    let lived = catch_unwind(AssertUnwindSafe(|| world::live(seed, wrong, without, lines)));
    lived.unwrap_or_else(|_| Outcome {
        seed,
        digest: 0,
        messages: 0,
        drained_ms: 0,
        violation: Some((Invariant::NoPanic, "the world panicked; see above".to_owned())),
        history: Vec::new(),
        wrong,
        without,
    })
}
