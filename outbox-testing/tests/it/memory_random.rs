//! The in-memory store under random use. A small relay settles late, fails, and drops its messages
//! in flight as in a crash. A failed test prints its seed.

use std::collections::HashMap;
use std::time::Duration;

use fastrand::Rng;
use outbox_core::store::RowKey;
use outbox_core::{
    Aggregate, Backlog, Events, FetchRequest, Fetched, FetchedRow, Lease, NewMessage, OutboxAdmin,
    OutboxStore, OwnerId, Selection, Settlement, Verdict, WaitingRequest,
};
use outbox_testing::MemoryStore;
use outbox_testing::Operator as _;
use outbox_testing::conformance::probe::Probe;
use tokio::time::advance;

const LONG: Duration = Duration::from_secs(1_000_000);

#[derive(Clone, Copy, PartialEq)]
enum DeadLetters {
    Nothing,
    /// Dead letters that halt their aggregate until they are retried.
    Halting,
    Anything,
}

struct Random {
    seed: u64,
    rng: Rng,
    store: MemoryStore,
    leases: Vec<Lease>,
    in_flight: Vec<FetchedRow>,
    waits: Vec<Settlement>,
    published: HashMap<Aggregate, Vec<u64>>,
    recorded: usize,
    publishes: usize,
    dead_letters: DeadLetters,
}

impl Random {
    async fn new(seed: u64, dead_letters: DeadLetters) -> Self {
        let store = MemoryStore::new();
        let leases = store.acquire(OwnerId::fresh(), LONG, 64).await.unwrap();
        Self {
            seed,
            rng: Rng::with_seed(seed),
            store,
            leases,
            in_flight: Vec::new(),
            waits: Vec::new(),
            published: HashMap::new(),
            recorded: 0,
            publishes: 0,
            dead_letters,
        }
    }

    fn record(&mut self) {
        let id = ["a", "b", "c"][self.rng.usize(..3)];
        let probe = if self.rng.u8(..8) == 0 {
            Probe::sampled(id, 1)
        } else {
            Probe::noted(id, 1)
        };
        let mut message = NewMessage::from_event(&probe).unwrap();
        if self.rng.u8(..4) == 0 {
            message = message.available_at(self.store.now() + Duration::from_secs(self.rng.u64(..20)));
        }
        self.store.record(Events::new().with(message)).unwrap();
        self.recorded += 1;
    }

    async fn fetch(&mut self) {
        let keys: Vec<RowKey> = self.in_flight.iter().map(FetchedRow::key).collect();
        let limit = self.rng.u32(1..5).try_into().unwrap();
        let fetched = if self.rng.bool() {
            let request = FetchRequest {
                leases: &self.leases,
                limit,
                bytes: usize::MAX,
                in_flight: &keys,
            };
            self.store.fetch(request).await
        } else {
            let request = WaitingRequest {
                leases: &self.leases,
                limit,
                per_aggregate: self.rng.u32(1..3).try_into().unwrap(),
                bytes: usize::MAX,
                in_flight: &keys,
                excluding: &[],
            };
            self.store.fetch_waiting(request).await
        };
        let Fetched { due, waits, .. } = fetched.unwrap();
        assert!(
            due.len() + waits.len() <= limit.get() as usize,
            "seed {}",
            self.seed
        );
        self.in_flight.extend(due);
        self.waits.extend(waits);
        if self.rng.u8(..4) != 0 {
            self.settle_waits().await;
        }
    }

    async fn settle_waits(&mut self) {
        let waits = std::mem::take(&mut self.waits);
        self.store.settle(&self.leases, &waits).await.unwrap();
    }

    async fn settle_one(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let any = self.rng.usize(..self.in_flight.len());
        let aggregate = self.in_flight[any].aggregate.clone();
        let oldest = self.in_flight.iter().position(|row| row.aggregate == aggregate);
        let row = self.in_flight.remove(oldest.unwrap());
        let verdict = match self.rng.u8(..10) {
            0..=5 => Verdict::Published {
                keep: self.rng.bool(),
            },
            6 if self.dead_letters != DeadLetters::Nothing => Verdict::Dead {
                error: "refused".to_owned(),
                halt: self.dead_letters == DeadLetters::Halting || self.rng.bool(),
            },
            _ => Verdict::Blocked {
                delay: Duration::from_secs(self.rng.u64(..10)),
                error: Some("failed".to_owned()),
                attempt: false,
            },
        };
        let goes_on = !row.sequenced
            || matches!(
                verdict,
                Verdict::Published { .. } | Verdict::Dead { halt: false, .. }
            );
        if matches!(verdict, Verdict::Published { .. }) {
            self.publishes += 1;
            let sequence = row.message.as_ref().unwrap().sequence;
            self.published
                .entry(aggregate.clone())
                .or_default()
                .extend(sequence);
        }
        if !goes_on {
            self.in_flight
                .retain(|row| !row.sequenced || row.aggregate != aggregate);
        }
        let settlement = row.with_verdict(verdict);
        let repeats = 1 + usize::from(self.rng.u8(..8) == 0);
        for _ in 0..repeats {
            self.store
                .settle(&self.leases, std::slice::from_ref(&settlement))
                .await
                .unwrap();
        }
    }

    async fn operate(&mut self) {
        match self.rng.u8(..4) {
            0 => {
                self.store.retry(&Selection::all()).await.unwrap();
            }
            1 if self.dead_letters == DeadLetters::Anything => {
                self.store.skip(&Selection::all()).await.unwrap();
            }
            2 => {
                let blocked = self.store.blocked(100.try_into().unwrap()).await.unwrap();
                for blocked in blocked {
                    self.store.resume(&blocked.aggregate).await.unwrap();
                }
            }
            _ => {
                self.in_flight.clear();
                self.waits.clear();
            }
        }
    }

    async fn step(&mut self) {
        match self.rng.u8(..16) {
            0..=2 => self.record(),
            3..=7 => self.fetch().await,
            8..=12 => self.settle_one().await,
            13 => self.operate().await,
            14 => self.settle_waits().await,
            _ => advance(Duration::from_secs(self.rng.u64(..4))).await,
        }
    }

    async fn drain(&mut self) {
        for _ in 0..5_000 {
            self.store.retry(&Selection::all()).await.unwrap();
            self.fetch().await;
            self.settle_one().await;
            advance(Duration::from_secs(1)).await;
            if self.store.backlog().await.unwrap() == Backlog::default() {
                return;
            }
        }
        let left = self
            .store
            .list(&Selection::all(), 100.try_into().unwrap())
            .await
            .unwrap();
        panic!("seed {}: some messages never come: {left:#?}", self.seed);
    }
}

async fn run(dead_letters: DeadLetters) {
    for seed in 0..150 {
        let mut random = Random::new(seed, dead_letters).await;
        for _ in 0..300 {
            random.step().await;
        }
        random.drain().await;
        let blocked = random.store.blocked(100.try_into().unwrap()).await.unwrap();
        assert_eq!(blocked, [], "seed {seed}: a block is left over");
        assert_eq!(random.publishes, random.recorded, "seed {seed}");
        for (aggregate, mut sequences) in random.published {
            if dead_letters == DeadLetters::Anything {
                // An operator may retry a dead letter late, so its place on the stream is not
                // checked.
                sequences.sort_unstable();
            }
            let expected: Vec<u64> = (1..=sequences.len() as u64).collect();
            assert_eq!(sequences, expected, "seed {seed}: {aggregate}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failing_messages_lose_and_overtake_no_message() {
    run(DeadLetters::Nothing).await;
}

#[tokio::test(start_paused = true)]
async fn retried_dead_letters_lose_and_overtake_no_message() {
    run(DeadLetters::Halting).await;
}

#[tokio::test(start_paused = true)]
async fn skipped_and_retried_dead_letters_lose_no_message() {
    run(DeadLetters::Anything).await;
}
