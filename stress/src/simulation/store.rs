//! The connection from a simulated relay to the store.
//!
//! Invariant: a call is one step on arrival, which the checker observes. A call may arrive after
//! its caller was dropped.

use std::sync::Arc;

use outbox_core::relay::Retention;
use outbox_testing::store_methods;
use outbox_testing::store_types::*;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::history::Life;
use super::plan::{self, Cut};
use super::world::{Shared, World, spawn_unless_dropped};
use super::{Wrong, maintenance, wrong};

#[derive(Debug, Clone)]
pub(super) struct SimStore {
    pub(super) world: Arc<World>,
    pub(super) life: Life,
}

#[derive(Debug, Clone, Copy)]
struct CallFault {
    before: Duration,
    after: Duration,
    end: End,
    survives: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Answered,
    Failed,
    AnswerLost,
    Silent { arrives: bool },
}

impl CallFault {
    fn draw(shared: &mut Shared, world: &World) -> Self {
        let plan = &world.plan.store;
        let (is_bad, rng) = (!shared.is_calm, &mut shared.rng);
        let mut latency = || plan::latency(rng, plan.latency_max);
        let (mut before, mut after) = (latency(), latency());
        let mut end = End::Answered;
        if is_bad {
            if plan::chance(rng, plan.is_slow) {
                let slow = plan::ms(rng, 50..=1500);
                *(if rng.bool() { &mut before } else { &mut after }) += slow;
            }
            if plan::chance(rng, plan.fails) {
                end = End::Failed;
            } else if plan::chance(rng, plan.loses_answer) {
                end = End::AnswerLost;
            } else if plan::chance(rng, plan.never_answers) {
                end = End::Silent { arrives: rng.bool() };
            }
        }
        Self {
            before,
            after,
            end,
            survives: rng.bool(),
        }
    }

    /// Whether the answer arrives within the relay's timeout. The clock rounds each delay up.
    fn is_heard(self, world: &World) -> bool {
        let round_trip = self.before + self.after + Duration::from_millis(4);
        self.end == End::Answered && round_trip < world.plan.store_timeout
    }
}

fn failed(context: &'static str) -> StoreError {
    StoreError::Database {
        context,
        source: Box::from("simulated fault"),
    }
}

async fn travel_back(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

impl SimStore {
    fn draw_fault(&self, name: &'static str) -> CallFault {
        let (world, life) = (&self.world, self.life);
        let mut shared = world.shared();
        let mut fault = CallFault::draw(&mut shared, world);
        if let Some(Cut::Store) = shared.cut_of(life) {
            fault.end = End::Silent { arrives: false };
        }
        if shared.cut_of(life) == Some(Cut::Call(name)) {
            fault.end = End::Silent {
                arrives: shared.rng.bool(),
            };
        }
        if name == "settle" {
            shared.checker.settling(life, fault.is_heard(world));
        }
        fault
    }

    /// Sends a call. `work` runs if the call arrives; its last argument is whether the caller gets
    /// the answer.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&World, &mut Shared, bool) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (world, life) = (self.world.clone(), self.life);
        let fault = self.draw_fault(name);
        let is_heard = fault.is_heard(&world);
        if fault.end == (End::Silent { arrives: false }) {
            let unanswered = format!("run {life}: {name} is never answered");
            world.shared().checker.history.note(unanswered);
            return std::future::pending().await;
        }
        let arrive = move |world: &World| {
            let mut shared = world.shared();
            let end = if shared.store_is_down {
                End::Failed
            } else {
                fault.end
            };
            if end == End::Failed {
                if name == "settle" {
                    shared.checker.settling(life, false);
                }
                shared.checker.history.note(format!("run {life}: {name} fails"));
                return Err(failed(name));
            }
            let result = work(world, &mut shared, is_heard)?;
            if end == End::Answered {
                return Ok(result);
            }
            shared
                .checker
                .history
                .note(format!("run {life}: the answer to {name} is lost"));
            Err(failed(name))
        };
        let result = if fault.before.is_zero() {
            let result = arrive(&self.world);
            travel_back(fault.after).await;
            result
        } else {
            let (answer, answered) = oneshot::channel();
            let travel = async move {
                sleep(fault.before).await;
                let result = arrive(&world);
                travel_back(fault.after).await;
                let _ = answer.send(result);
            };
            let _guard = spawn_unless_dropped(travel, fault.survives);
            answered.await.unwrap_or_else(|_| Err(failed(name)))
        };
        if let End::Silent { .. } = fault.end {
            return std::future::pending().await;
        }
        result
    }

    fn note_fetched(shared: &mut Shared, world: &World, life: Life, is_blocked: bool, fetched: &Fetched) {
        let row_ids = fetched.due.iter().map(|row| row.row_id);
        for row_id in row_ids.chain(fetched.waits.iter().map(|wait| wait.row_id)) {
            if !shared.checker.knows_row(row_id)
                && let Some(id) = world.store.id_of(row_id)
            {
                shared.checker.learn_row(row_id, id);
            }
        }
        let due: Vec<_> = fetched.due.iter().map(|row| row.row_id).collect();
        let waits: Vec<_> = fetched.waits.iter().map(|wait| wait.row_id).collect();
        shared.checker.fetched(life, is_blocked, &due, &waits);
    }
}

impl OutboxStore for SimStore {
    async fn preflight(&self, _: bool) -> Result<Vec<SetupProblem>, StoreError> {
        self.call("preflight", |_, _, _| Ok(Vec::new())).await
    }

    async fn announce(
        &self,
        owner: OwnerId,
        ttl: Duration,
        announcement: &Announcement,
    ) -> Result<Relays, StoreError> {
        let announcement = announcement.clone();
        self.call("announce", move |_, shared, _| {
            shared.backend.announce(owner, ttl, announcement)
        })
        .await
    }

    async fn relays(&self) -> Result<Vec<LiveRelay>, StoreError> {
        self.call("relays", |world, _, _| wrong::now(world.store.relays()))
            .await
    }

    async fn acquire(&self, owner: OwnerId, ttl: Duration, max: u16) -> Result<Vec<Lease>, StoreError> {
        let life = self.life;
        self.call("acquire", move |_, shared, _| {
            let leases = shared.backend.acquire(owner, ttl, max)?;
            let ttl = shared.wrong.ttl(ttl);
            shared.checker.acquired(life, owner, &leases, ttl);
            Ok(leases)
        })
        .await
    }

    async fn renew(&self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        let (life, leases) = (self.life, leases.to_vec());
        self.call("renew", move |_, shared, _| {
            let kept = shared.backend.renew(owner, &leases, ttl)?;
            let ttl = shared.wrong.ttl(ttl);
            shared.checker.renewed(life, &leases, &kept, ttl);
            Ok(kept)
        })
        .await
    }

    async fn release(&self, owner: OwnerId, leases: &[Lease]) -> Result<(), StoreError> {
        let (life, leases) = (self.life, leases.to_vec());
        // The relay drops its leases even if the call gets lost.
        self.world.shared().checker.lets_go(life, &leases);
        self.call("release", move |world, shared, _| {
            wrong::now(world.store.release(owner, &leases))?;
            shared.checker.released(life, &leases);
            Ok(())
        })
        .await
    }

    async fn leave(&self, owner: OwnerId) -> Result<(), StoreError> {
        let life = self.life;
        self.call("leave", move |world, shared, _| {
            wrong::now(world.store.leave(owner))?;
            shared.checker.left(life, owner);
            Ok(())
        })
        .await
    }

    async fn fetch(&self, request: FetchRequest<'_>) -> Result<Fetched, StoreError> {
        let life = self.life;
        let (limit, bytes) = (request.limit, request.bytes);
        let (leases, in_flight) = (request.leases.to_vec(), request.in_flight.to_vec());
        self.call("fetch", move |world, shared, _| {
            let request = FetchRequest {
                leases: &leases,
                limit,
                bytes,
                in_flight: &in_flight,
            };
            let fetched = shared.backend.fetch(life, request)?;
            Self::note_fetched(shared, world, life, false, &fetched);
            Ok(fetched)
        })
        .await
    }

    async fn fetch_waiting(&self, request: WaitingRequest<'_>) -> Result<Fetched, StoreError> {
        let life = self.life;
        let (limit, bytes, per_aggregate) = (request.limit, request.bytes, request.per_aggregate);
        let (leases, in_flight) = (request.leases.to_vec(), request.in_flight.to_vec());
        let excluding: Vec<Aggregate> = request.excluding.to_vec();
        self.call("fetch waiting", move |world, shared, _| {
            let request = WaitingRequest {
                leases: &leases,
                limit,
                per_aggregate,
                bytes,
                in_flight: &in_flight,
                excluding: &excluding,
            };
            let fetched = shared.backend.fetch_waiting(life, request)?;
            Self::note_fetched(shared, world, life, true, &fetched);
            Ok(fetched)
        })
        .await
    }

    async fn settle(&self, leases: &[Lease], settlements: &[Settlement]) -> Result<usize, StoreError> {
        let (life, leases, settlements) = (self.life, leases.to_vec(), settlements.to_vec());
        let settled = self.call("settle", move |_, shared, answered| {
            let accepted = shared.backend.settle(&leases, &settlements)?;
            shared
                .checker
                .settled(life, &leases, &settlements, accepted, answered);
            Ok(accepted)
        });
        let accepted = settled.await?;
        // A relay may have dropped its settlements before the response arrives.
        self.world.shared().checker.settlement_heard(life);
        Ok(accepted)
    }

    async fn purge(&self, mut request: PurgeRequest) -> Result<Purged, StoreError> {
        if let Retention::KeepFor(time) = self.world.plan.retention {
            request.older_than = Some(time);
        }
        self.call("purge", move |world, shared, _| {
            maintenance::purge_once(world, shared, request)
        })
        .await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        if self.world.plan.pauses.is_none() {
            return wrong::now(self.world.store.pauses());
        }
        let read = self.call("pauses", |world, _, _| wrong::now(world.store.pauses()));
        match (read.await, self.world.wrong) {
            (Err(_), Wrong::GoesOnUnheard) => Ok(Vec::new()),
            (read, _) => read,
        }
    }

    async fn finish_pauses(&self) -> Result<bool, StoreError> {
        if self.world.plan.pauses.is_none() {
            return wrong::now(self.world.store.finish_pauses());
        }
        self.call("finish pauses", |_, shared, _| shared.backend.finish_pauses())
            .await
    }

    /// Only some features call this method, so it must not draw random numbers or add to the
    /// history.
    async fn backlog(&self) -> Result<Backlog, StoreError> {
        wrong::now(self.world.store.backlog())
    }
}

macro_rules! now {
    ($self:ident, $method:ident($($argument:expr),*)) => { wrong::now($self.world.store.$method($($argument),*)) };
}

impl OutboxAdmin for SimStore {
    store_methods!(self, now; list page blocked forget_idle);

    async fn published(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> Result<Vec<Message>, StoreError> {
        self.call("published", move |world, _, _| {
            wrong::now(world.store.published(recorded_from, recorded_until, after, limit))
        })
        .await
    }
}
