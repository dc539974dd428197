//! Finds out when messages that wait for those before them in their aggregate may run, where another process handles those (strategy `sequence`).
//!
//! One statement looks at the sequences of many aggregates, every few milliseconds while something moves. Without it each message would begin a
//! transaction again and again, and an aggregate whose messages are spread over processes would go on at the pace of those polls. Invariant: a look only ends
//! a wait, and the claim decides; a look that fails costs time. Not here: the sequences ([`crate::dedup::sequence`]), and how long a gap is waited for
//! ([`super::sequencing`]).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::consumer::Consumer;
use super::lanes::{LaneKey, Lanes, Queued};
use crate::handler::describe;

/// Pause between two looks while something moves. It doubles with each look in vain.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(250);
/// Most aggregates in one look.
const LANES_MAX: usize = 128;
/// An aggregate moves in other processes as long as its last number rises at least this often.
const MOVES_WITHIN: Duration = Duration::from_secs(1);

/// Lanes, with the last number that their aggregate has come to.
type Found = Vec<(Arc<LaneKey>, u64)>;

/// What the looks have shown of an aggregate that a lane waits for.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// `None`: not looked at yet.
    last: Option<u64>,
    /// When `last` was seen to rise. `None`: it has not.
    rose_at: Option<Instant>,
}

impl Progress {
    /// Whether the aggregate moves, after a look that found the number `last`.
    fn moves(&mut self, last: u64, now: Instant) -> bool {
        if self.last.replace(last).is_some_and(|before| before < last) {
            self.rose_at = Some(now);
        }
        self.rose_at.is_some_and(|rose_at| now < rose_at + MOVES_WITHIN)
    }
}

/// The lanes that wait.
#[derive(Debug)]
pub(super) struct Predecessors {
    /// Those that were looked at stand at the end.
    lanes: VecDeque<Arc<LaneKey>>,
    known: HashMap<Arc<LaneKey>, Progress>,
    pause: Duration,
    /// `None` while a look is under way, or nothing waits.
    next_poll: Option<Instant>,
    is_looking: bool,
    found: (mpsc::UnboundedSender<Found>, mpsc::UnboundedReceiver<Found>),
}

impl Default for Predecessors {
    fn default() -> Self {
        Self {
            lanes: VecDeque::new(),
            known: HashMap::new(),
            pause: LOOK_MIN,
            next_poll: None,
            is_looking: false,
            found: mpsc::unbounded_channel(),
        }
    }
}

impl Predecessors {
    /// The first message of a lane waits for others. `came_to`: the number that the aggregate has just come to, if it moves.
    pub(super) fn await_those_of(&mut self, key: &Arc<LaneKey>, came_to: Option<u64>, now: Instant) {
        if let Entry::Vacant(entry) = self.known.entry(key.clone()) {
            entry.insert(Progress {
                last: came_to,
                rose_at: came_to.map(|_| now),
            });
            // It may stand there still.
            self.lanes.retain(|other| !Arc::ptr_eq(other, key));
            self.lanes.push_back(key.clone());
            self.pause = LOOK_MIN;
            if !self.is_looking {
                let soon = now + LOOK_MIN;
                self.next_poll = Some(self.next_poll.map_or(soon, |next| next.min(soon)));
            }
        }
    }

    /// After the number `done` of a lane's aggregate took effect: `next` is the number that stands first in the lane now. If it comes too early, because other
    /// processes have those between them, it does not claim its turn before the time that is returned.
    pub(super) fn await_between(
        &mut self,
        key: &Arc<LaneKey>,
        done: u64,
        next: u64,
        now: Instant,
    ) -> Option<Instant> {
        (next > done + 1).then(|| {
            self.await_those_of(key, Some(done), now);
            now + LOOK_MAX
        })
    }

    /// A lane has run, so it waits for others no longer.
    pub(super) fn forget(&mut self, key: &Arc<LaneKey>) {
        self.known.remove(key);
    }

    pub(super) fn next_poll(&self) -> Option<Instant> {
        self.next_poll
    }

    /// What a look has found. Cancel-safe.
    pub(super) async fn found(&mut self) -> Option<Found> {
        self.found.1.recv().await
    }

    /// A look at how far the aggregates have come that something waits for. It is to run beside the loop, and ends in [`Self::found`]. `None`: nothing waits.
    pub(super) fn look(
        &mut self,
        consumer: Arc<Consumer>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        self.next_poll = None;
        let known = &self.known;
        self.lanes.retain(|key| known.contains_key(key));
        if self.lanes.is_empty() {
            return None;
        }
        self.is_looking = true;
        let count = self.lanes.len().min(LANES_MAX);
        let lanes: Vec<_> = self.lanes.iter().take(count).cloned().collect();
        self.lanes.rotate_left(count);
        let found = self.found.0.clone();
        Some(async move {
            // Nobody listens after the end of the loop.
            let _ = found.send(come_to(&consumer, lanes).await);
        })
    }

    /// Lets those lanes go on whose turn has come, and plans the next look.
    pub(super) fn accept<T: Queued>(&mut self, found: &[(Arc<LaneKey>, u64)], lanes: &mut Lanes<T>) {
        let now = Instant::now();
        let mut over = HashSet::new();
        let mut moved = false;
        for (key, last) in found {
            let Some(progress) = self.known.get_mut(key) else {
                // It ran meanwhile. If it is blocked now, it is for another reason.
                continue;
            };
            match lanes.blocked_order_key(key) {
                Some(order_key) if order_key > last + 1 => {
                    lanes.set_moving(key, progress.moves(*last, now), now);
                }
                Some(_) => {
                    lanes.unblock(key, now);
                    over.insert(key.clone());
                    moved = true;
                }
                // It runs, or has gone.
                None => drop(over.insert(key.clone())),
            }
        }
        self.lanes.retain(|key| !over.contains(key));
        self.known.retain(|key, _| !over.contains(key));
        self.is_looking = false;
        self.pause = if moved {
            LOOK_MIN
        } else {
            (2 * self.pause).min(LOOK_MAX)
        };
        self.next_poll = (!self.lanes.is_empty()).then(|| now + self.pause);
    }
}

/// How far the aggregates of lanes have come.
async fn come_to(consumer: &Consumer, lanes: Vec<Arc<LaneKey>>) -> Found {
    let aggregates = lanes.iter().filter_map(|key| match &**key {
        LaneKey::Aggregate(aggregate, Some(source)) => Some((aggregate, &**source)),
        _ => None,
    });
    let (pool, sql) = (consumer.shared.database.pool(), &consumer.shared.sql);
    let sequences = match sql.last_sequences(pool, consumer.name, aggregates).await {
        Ok(sequences) => sequences,
        Err(error) => {
            tracing::debug!(consumer = consumer.name, error = %describe(&error), "sequences cannot be read");
            Default::default()
        }
    };
    let come_to = |key: &Arc<LaneKey>| {
        let last = match &**key {
            LaneKey::Aggregate(aggregate, Some(source)) => {
                sequences.get(&(aggregate.clone(), &**source)).copied()
            }
            _ => None,
        };
        // Nobody has begun.
        (key.clone(), last.unwrap_or(0))
    };
    lanes.iter().map(come_to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregate_moves_as_long_as_its_last_number_rises() {
        let (start, mut progress) = (Instant::now(), Progress::default());
        let at = |millis| start + Duration::from_millis(millis);
        // The first look has nothing to compare with.
        assert!(!progress.moves(5, at(0)));
        assert!(!progress.moves(5, at(10)));
        assert!(progress.moves(6, at(20)));
        assert!(progress.moves(6, at(1_000)));
        assert!(!progress.moves(6, at(1_020)));
        assert!(progress.moves(9, at(5_000)));
    }
}
