//! A world in which everything goes wrong, repeatably: the relay's own code over store and broker in memory, on a paused clock.
//!
//! One seed decides everything: the number of relays and writers, their settings, the duration of each call, the faults, the await at which a relay
//! crashes or pauses, the relays that are cut off from broker or store, the messages that the stream loses, the acts of operators, and the times of drains,
//! purges and reconciling. Crashed calls may still arrive. When the faults end, all that was committed must come out; [`Invariant`] lists the properties
//! that must have held all along. [`Wrong`] plants mistakes, which must be found.
//!
//! Invariant of this module: nothing but the seed decides, so a failure can be repeated.

mod broker;
mod checker;
mod faults;
mod history;
mod maintenance;
mod plan;
mod relays;
mod store;
mod world;
mod writers;
mod wrong;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use wrong::Wrong;

/// The properties that must hold whatever happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Invariant {
    /// Every committed message is on the stream or visibly dead, and what is settled as published has been there. Only what was published long
    /// enough ago is purged. What the stream loses while it is kept is there again after reconciling.
    NoLoss,
    /// Every message on the stream was committed.
    NoGhost,
    /// Per aggregate, first appearances on the stream are in the order of commits, without holes but for what was skipped; nothing appears before
    /// its time; and a relay has at most one message of an aggregate on its way.
    Order,
    /// No verdict is accepted under a stale epoch, and none refused under a live one.
    Fence,
    /// A partition has one owner at a time, and nobody else begins to send its messages.
    Exclusive,
    /// A message is sent again only for a reason, once for each, and is stored again only if the broker has forgotten it. Reconciling sends nothing that is
    /// on the stream.
    Duplicates,
    /// When the faults end, everything comes out in bounded time, also if one relay of several stays cut off from broker or store: first the messages of
    /// aggregates without poison, then the rest. A drain leaves no message that was due, and none in flight. A shutdown ends in time.
    Progress,
    /// Only refusals that are the message's own fault use attempts or dead-letter it.
    Attempts,
    /// In the end nothing waits and nothing is blocked.
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
    /// Messages that were committed.
    pub messages: usize,
    /// Milliseconds of simulated time from the end of the faults until everything was out.
    pub drained_ms: u64,
    /// The first violation.
    pub violation: Option<(Invariant, String)>,
    /// The last lines of the history.
    pub history: Vec<String>,
    wrong: Wrong,
}

impl Outcome {
    /// The command that repeats it.
    #[must_use]
    pub fn replay(&self) -> String {
        let wrong = match self.wrong {
            Wrong::None => String::new(),
            wrong => format!(" --wrong {}", wrong.name()),
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

/// Runs the world of one seed, and keeps the last `lines` lines of its history. This blocks, and must not be called from within a Tokio runtime.
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
