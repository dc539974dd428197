//! A world: its relays, writers and operators, and the final check. A world has one thread, one
//! paused clock and one random number generator.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use outbox_core::message::MessageId;
use outbox_core::publisher::FailureClass;
use outbox_core::relay::Retention;
use outbox_core::store::{MessageStatus, OutboxAdmin as _, OutboxStore as _};
use outbox_testing::{MemoryBroker, MemoryLog, MemoryStore};
use tokio::runtime::Builder;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::checker::{Checker, Poison};
use super::history::Life;
use super::plan::{Cut, Plan};
use super::wrong::Backend;
use super::{Invariant, Outcome, Wrong, faults, maintenance, pauses, relays, writers, wrong};

/// Time limit for the backlog. Leases, pauses, back-offs and delays of a plan add up to less than
/// half of it.
const DRAINED_WITHIN: Duration = Duration::from_secs(15);
/// Time limit per message. Sends of one aggregate are sequential; the slowest broker needs 6 ms
/// each on average.
const DRAINED_PER_MESSAGE: Duration = Duration::from_millis(10);
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Time after which no late message is in flight.
const GHOSTS_ARRIVED: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct World {
    pub(super) store: MemoryStore,
    pub(super) broker: MemoryBroker,
    pub(super) log: Option<MemoryLog>,
    pub(super) plan: Plan,
    pub(super) wrong: Wrong,
    pub(super) calm_at: Instant,
    pub(super) end: CancellationToken,
    shared: Mutex<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) rng: Rng,
    pub(super) wrong: Wrong,
    pub(super) backend: Backend,
    pub(super) checker: Checker,
    pub(super) is_calm: bool,
    pub(super) store_is_down: bool,
    pub(super) broker_is_down: bool,
    pub(super) broker_refuses: Option<FailureClass>,
    pub(super) cut_off: BTreeMap<u32, Cut>,
    relays: Vec<u32>,
    connections: BTreeMap<Life, u32>,
    leads: BTreeMap<u32, i64>,
    pub(super) unrecordable: Vec<MessageId>,
    /// The run that keeps the log without reading it; see [`Wrong::KeepsTheLog`].
    pub(super) log_kept_by: Option<Life>,
    pub(super) meant: u32,
}

impl Shared {
    pub(super) fn begin_life(&mut self, relay: u32) -> Life {
        self.relays.push(relay);
        self.checker.started(relay)
    }

    pub(super) fn cut_of(&self, life: Life) -> Option<Cut> {
        let relay = self.relays.get(life as usize)?;
        self.cut_off.get(relay).copied()
    }

    pub(super) fn lead(&self, life: Life) -> time::Duration {
        let lead = self
            .relays
            .get(life as usize)
            .and_then(|relay| self.leads.get(relay));
        time::Duration::milliseconds(lead.copied().unwrap_or_default())
    }

    pub(super) fn set_clock(&mut self, relay: u32, by_ms: i64) {
        *self.leads.entry(relay).or_default() += by_ms;
    }

    pub(super) fn connection(&self, life: Life) -> u32 {
        self.connections.get(&life).copied().unwrap_or_default()
    }

    pub(super) fn reconnect(&mut self, life: Life) {
        *self.connections.entry(life).or_default() += 1;
    }
}

impl World {
    fn new(seed: u64, wrong: Wrong) -> Self {
        // Neighbouring seeds must give unrelated worlds.
        let mut rng = Rng::with_seed(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut plan = Plan::draw(&mut rng);
        plan.draw_log(seed);
        plan.draw_pauses(seed);
        plan.draw_row_ids(seed);
        let store = MemoryStore::new();
        let log = plan.log.is_some().then(|| store.log());
        let mut checker = Checker::new(wrong, &plan);
        if log.is_some() {
            checker.has_log();
        }
        Self {
            broker: MemoryBroker::new(),
            log,
            wrong,
            calm_at: Instant::now() + plan.chaos,
            end: CancellationToken::new(),
            shared: Mutex::new(Shared {
                rng,
                wrong,
                backend: Backend::new(store.clone(), wrong),
                checker,
                is_calm: false,
                store_is_down: false,
                broker_is_down: false,
                broker_refuses: None,
                cut_off: BTreeMap::new(),
                relays: Vec::new(),
                connections: BTreeMap::new(),
                leads: BTreeMap::new(),
                unrecordable: Vec::new(),
                log_kept_by: None,
                meant: 0,
            }),
            store,
            plan,
        }
    }

    pub(super) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_violated(&self) -> bool {
        self.shared().checker.violation.is_some()
    }

    fn note_phase(&self, name: &'static str) {
        self.shared().checker.history.note(name);
    }
}

pub(super) fn spawn_unless_dropped(
    task: impl Future<Output = ()> + Send + 'static,
    survives: bool,
) -> Option<AbortOnDrop> {
    let task = tokio::spawn(task);
    (!survives).then(|| AbortOnDrop(task.abort_handle()))
}

#[derive(Debug)]
pub(super) struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) fn live(seed: u64, wrong: Wrong, lines: usize) -> Outcome {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime for the simulation: {error}"),
    };
    runtime.block_on(async {
        let world = Arc::new(World::new(seed, wrong));
        let drained_in = run(&world).await;
        let shared = world.shared();
        let checker = &shared.checker;
        Outcome {
            seed,
            digest: checker.history.digest(),
            messages: checker.messages.len(),
            drained_ms: drained_in.as_millis() as u64,
            violation: checker.violation.clone(),
            history: checker.history.tail(lines),
            wrong,
        }
    })
}

/// Runs the world. Returns the time from the end of the faults until every message was published.
async fn run(world: &Arc<World>) -> Duration {
    let plan = &world.plan;
    let relays: Vec<_> = (0..plan.relays)
        .map(|relay| tokio::spawn(relays::live(world.clone(), relay)))
        .collect();
    let mut others: Vec<_> = (0..plan.writers)
        .map(|_| tokio::spawn(writers::write(world.clone())))
        .collect();
    others.extend(
        plan.faults_every
            .map(|every| tokio::spawn(faults::change(world.clone(), every))),
    );
    others.extend(
        plan.cut_off
            .map(|(from, cut)| tokio::spawn(faults::cut_off(world.clone(), from, cut))),
    );
    others.extend(
        plan.operator_every
            .map(|every| tokio::spawn(writers::operate(world.clone(), every))),
    );
    others.extend(
        plan.clocks_every
            .map(|every| tokio::spawn(faults::change_clocks(world.clone(), every))),
    );
    let log_faults = plan.log.as_ref().and_then(|log| log.faults_every);
    others.extend(log_faults.map(|every| tokio::spawn(faults::change_log(world.clone(), every))));
    others.extend(
        plan.reconcile_every
            .map(|every| tokio::spawn(maintenance::reconcile_every(world.clone(), every))),
    );
    others.extend(
        plan.pauses
            .clone()
            .map(|pauses| tokio::spawn(pauses::operate(world.clone(), pauses))),
    );
    others.extend(
        plan.row_ids_set_back
            .map(|after| tokio::spawn(faults::set_back_row_ids(world.clone(), after))),
    );
    sleep_until(world.calm_at).await;
    world.shared().is_calm = true;
    world.note_phase("the faults are over");
    join(world, others).await;
    maintenance::purge(world, &mut world.shared());
    let calm_at = Instant::now();
    until(world, "messages without poisoned neighbours", clean_is_out).await;
    world.note_phase("the poison is cleared");
    world.shared().checker.heal();
    world.store.refuse_verdicts(&[]);
    until(world, "everything", |world| {
        writers::tidy_up(world);
        all_is_out(world)
    })
    .await;
    let drained_in = calm_at.elapsed();
    world.note_phase("the end");
    world.end.cancel();
    join(world, relays).await;
    sleep(GHOSTS_ARRIVED).await;
    maintenance::restore(world).await;
    maintenance::purge(world, &mut world.shared());
    judge(world);
    drained_in
}

async fn join(world: &World, tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        if task.await.is_err() {
            let what = "a task panicked; see above".to_owned();
            world.shared().checker.violate(Invariant::NoPanic, what);
        }
    }
}

async fn until(world: &World, what: &str, is_out: impl Fn(&World) -> bool) {
    let messages = world.shared().checker.messages.len() as u32;
    let within = DRAINED_WITHIN + DRAINED_PER_MESSAGE * messages;
    let give_up_at = Instant::now() + within;
    while !world.is_violated() && !is_out(world) {
        if Instant::now() > give_up_at {
            let what = format!("{what} should be out {within:?} after the faults");
            world.shared().checker.violate(Invariant::Progress, what);
        }
        sleep(LOOK_EVERY).await;
    }
}

fn clean_is_out(world: &World) -> bool {
    let shared = world.shared();
    let messages = &shared.checker.messages;
    let mut is_clean = vec![true; world.plan.aggregates as usize];
    for message in messages
        .iter()
        .filter(|message| message.draft.poison != Poison::None)
    {
        is_clean[message.draft.aggregate as usize] = false;
    }
    messages
        .iter()
        .filter(|message| is_clean[message.draft.aggregate as usize])
        .all(|message| message.appeared)
}

fn all_is_out(world: &World) -> bool {
    let backlog = wrong::now(world.store.backlog()).unwrap_or_default();
    let pauses = wrong::now(world.store.pauses()).unwrap_or_default();
    backlog.pending == 0
        && backlog.halted_aggregates == 0
        && pauses.is_empty()
        && world.shared().checker.has_passed_all()
}

fn judge(world: &World) {
    let mut shared = world.shared();
    let checker = &mut shared.checker;
    if checker.violation.is_some() {
        return;
    }
    let rows: BTreeMap<_, _> = world
        .store
        .rows()
        .into_iter()
        .map(|row| (row.message.id, row.status))
        .collect();
    let lost = (0_u32..).zip(&checker.messages).find_map(|(no, message)| {
        let status = rows.get(&message.draft.id).copied();
        let is_accounted = match status {
            Some(MessageStatus::Dead) => true,
            Some(MessageStatus::Published) => message.copies > 0,
            // Reconciliation excludes messages with the status `logged`.
            Some(MessageStatus::Logged) => message.appeared,
            // A replaced relay made the message pending and stopped last, so no relay is left to
            // publish it again.
            Some(MessageStatus::Pending) if message.was_adopted => message.appeared,
            Some(_) => false,
            None => message.purged || (message.copies > 0 && world.plan.retention == Retention::Delete),
        };
        (!is_accounted).then(|| {
            format!(
                "message {no} is {status:?}, purged: {}, and {} times on the stream",
                message.purged, message.copies
            )
        })
    });
    if let Some(lost) = lost {
        checker.violate(Invariant::NoLoss, lost);
    }
    let blocked = wrong::now(world.store.blocked(std::num::NonZeroU32::MIN)).unwrap_or_default();
    if let Some(blocked) = blocked.first() {
        checker.violate(
            Invariant::Hygiene,
            format!("aggregate {} is still blocked", blocked.aggregate),
        );
    }
    checker.check_sends();
    checker.check_meant();
}
