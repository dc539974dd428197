//! Polls the last sequences of aggregates whose next message is in another process (strategy
//! `sequence`). Without polls each waiting message would repeatedly begin transactions.
//!
//! Invariant: a poll only ends a wait; the claim decides whether the message runs.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::handler::describe;
use crate::runtime::consumer::Consumer;
use crate::runtime::schedule::lanes::{LaneItem, LaneKey, Lanes};

/// Shortest interval of polls. The interval doubles after each poll that ends no wait.
const POLL_MIN: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(250);
const LANES_MAX: usize = 128;
const MOVES_WITHIN: Duration = Duration::from_secs(1);

type LastSequences = Vec<(Arc<LaneKey>, u64)>;

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    last: Option<u64>,
    rose_at: Option<Instant>,
}

impl Progress {
    fn moves(&mut self, last: u64, now: Instant) -> bool {
        if self.last.replace(last).is_some_and(|before| before < last) {
            self.rose_at = Some(now);
        }
        self.rose_at.is_some_and(|rose_at| now < rose_at + MOVES_WITHIN)
    }
}

#[derive(Debug)]
pub(crate) struct Predecessors {
    lanes: VecDeque<Arc<LaneKey>>,
    watched: HashMap<Arc<LaneKey>, Progress>,
    pause: Duration,
    next_poll: Option<Instant>,
    is_polling: bool,
    found: (
        mpsc::UnboundedSender<LastSequences>,
        mpsc::UnboundedReceiver<LastSequences>,
    ),
}

impl Default for Predecessors {
    fn default() -> Self {
        Self {
            lanes: VecDeque::new(),
            watched: HashMap::new(),
            pause: POLL_MIN,
            next_poll: None,
            is_polling: false,
            found: mpsc::unbounded_channel(),
        }
    }
}

impl Predecessors {
    pub(crate) fn watch(&mut self, key: &Arc<LaneKey>, last: Option<u64>, now: Instant) {
        if let Entry::Vacant(entry) = self.watched.entry(key.clone()) {
            entry.insert(Progress {
                last,
                rose_at: last.map(|_| now),
            });
            self.lanes.retain(|other| !Arc::ptr_eq(other, key));
            self.lanes.push_back(key.clone());
            self.pause = POLL_MIN;
            if !self.is_polling {
                let soon = now + POLL_MIN;
                self.next_poll = Some(self.next_poll.map_or(soon, |next| next.min(soon)));
            }
        }
    }

    /// Starts polling the aggregate's last sequence if messages between `done` and `next` are
    /// missing here, because another process may handle them.
    pub(crate) fn watch_gap(
        &mut self,
        key: &Arc<LaneKey>,
        done: u64,
        next: u64,
        now: Instant,
    ) -> Option<Instant> {
        (next > done + 1).then(|| {
            self.watch(key, Some(done), now);
            now + POLL_MAX
        })
    }

    pub(crate) fn forget(&mut self, key: &Arc<LaneKey>) {
        self.watched.remove(key);
    }

    pub(crate) fn next_poll(&self) -> Option<Instant> {
        self.next_poll
    }

    /// Cancel-safe.
    pub(crate) async fn found(&mut self) -> Option<LastSequences> {
        self.found.1.recv().await
    }

    pub(crate) fn poll(
        &mut self,
        consumer: Arc<Consumer>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        self.next_poll = None;
        let watched = &self.watched;
        self.lanes.retain(|key| watched.contains_key(key));
        if self.lanes.is_empty() {
            return None;
        }
        self.is_polling = true;
        let count = self.lanes.len().min(LANES_MAX);
        let lanes: Vec<_> = self.lanes.iter().take(count).cloned().collect();
        self.lanes.rotate_left(count);
        let found = self.found.0.clone();
        Some(async move {
            let _ = found.send(last_sequences(&consumer, lanes).await);
        })
    }

    pub(crate) fn accept<T: LaneItem>(&mut self, found: &[(Arc<LaneKey>, u64)], lanes: &mut Lanes<T>) {
        let now = Instant::now();
        let mut over = HashSet::new();
        let mut moved = false;
        for (key, last) in found {
            let Some(progress) = self.watched.get_mut(key) else {
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
                None => drop(over.insert(key.clone())),
            }
        }
        self.lanes.retain(|key| !over.contains(key));
        self.watched.retain(|key, _| !over.contains(key));
        self.is_polling = false;
        self.pause = if moved {
            POLL_MIN
        } else {
            (2 * self.pause).min(POLL_MAX)
        };
        self.next_poll = (!self.lanes.is_empty()).then(|| now + self.pause);
    }
}

/// Returns zero for each lane after a read error, so that every lane keeps waiting.
async fn last_sequences(consumer: &Consumer, lanes: Vec<Arc<LaneKey>>) -> LastSequences {
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
    let last_of = |key: &Arc<LaneKey>| {
        let last = match &**key {
            LaneKey::Aggregate(aggregate, Some(source)) => {
                sequences.get(&(aggregate.clone(), &**source)).copied()
            }
            _ => None,
        };
        (key.clone(), last.unwrap_or(0))
    };
    lanes.iter().map(last_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregate_moves_as_long_as_its_last_sequence_rises() {
        let (start, mut progress) = (Instant::now(), Progress::default());
        let at = |millis| start + Duration::from_millis(millis);
        assert!(!progress.moves(5, at(0)));
        assert!(!progress.moves(5, at(10)));
        assert!(progress.moves(6, at(20)));
        assert!(progress.moves(6, at(1_000)));
        assert!(!progress.moves(6, at(1_020)));
        assert!(progress.moves(9, at(5_000)));
    }
}
