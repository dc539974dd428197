//! The checker of a simulated world.
//!
//! Invariant: the checker uses only events visible from outside the relay, and causes none. The
//! checker keeps the first violation of an [`Invariant`].

mod accounts;
mod leases;
mod logged;
mod maintenance;
mod paused;
mod stream;

use std::collections::{BTreeMap, HashMap};

use outbox_core::log::Position;
use outbox_core::message::{Message, MessageId, PARTITIONS};
use outbox_core::publisher::FailureClass;
use outbox_core::relay::PoisonPolicy;
use outbox_core::store::{Lease, Settlement, Verdict};
use tokio::time::Instant;

use self::accounts::{Account, LifeAccount};
pub(super) use self::accounts::{Draft, Poison};
use self::leases::Granted;
use self::paused::Paused;
use super::history::{History, Life, MessageNo};
use super::plan::Plan;
use super::{Invariant, Wrong};

#[derive(Debug)]
pub(super) struct Checker {
    wrong: Wrong,
    attempts_max: u32,
    on_poison: PoisonPolicy,
    pub(super) history: History,
    pub(super) violation: Option<(Invariant, String)>,
    pub(super) messages: Vec<Account>,
    by_id: HashMap<MessageId, MessageNo>,
    by_row_id: HashMap<i64, MessageNo>,
    pub(super) order: BTreeMap<u32, Vec<MessageNo>>,
    sequences: BTreeMap<u32, u64>,
    lives: Vec<LifeAccount>,
    leases: Vec<Option<Granted>>,
    acquired_by: Vec<Option<Life>>,
    /// Relay processes that cannot detect a clock jump: process, partition, and the original end of
    /// the lease.
    misled: Vec<(Life, u16, Instant)>,
    stream: BTreeMap<u64, MessageNo>,
    /// Whether copies may be out of order, because the row id counter was set back.
    pub(super) copies_are_anywhere: bool,
    /// Whether a message was recorded, for each event that a writer records with retries.
    meant: BTreeMap<u32, bool>,
    has_log: bool,
    paused: Paused,
    unpassed: Vec<(Position, Vec<MessageNo>)>,
}

impl Checker {
    pub(super) fn new(wrong: Wrong, plan: &Plan) -> Self {
        Self {
            wrong,
            attempts_max: plan.policy.attempts_max,
            on_poison: plan.policy.on_poison,
            history: History::new(),
            violation: None,
            messages: Vec::new(),
            by_id: HashMap::new(),
            by_row_id: HashMap::new(),
            order: BTreeMap::new(),
            sequences: BTreeMap::new(),
            lives: Vec::new(),
            leases: vec![None; usize::from(PARTITIONS)],
            acquired_by: vec![None; usize::from(PARTITIONS)],
            misled: Vec::new(),
            stream: BTreeMap::new(),
            copies_are_anywhere: false,
            meant: BTreeMap::new(),
            has_log: false,
            paused: Paused::new(plan.lease_ttl),
            unpassed: Vec::new(),
        }
    }

    pub(super) fn violate(&mut self, invariant: Invariant, what: String) {
        if self.violation.is_none() {
            self.violation = Some((invariant, what));
        }
    }

    fn demand(&mut self, invariant: Invariant, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violate(invariant, what());
        }
    }

    pub(super) fn means(&mut self, meant: Option<u32>) {
        if let Some(meant) = meant {
            self.meant.entry(meant).or_default();
        }
    }

    pub(super) fn check_meant(&mut self) {
        let missing = self.meant.iter().find(|(_, is_recorded)| !**is_recorded);
        if let Some((meant, _)) = missing {
            let what = format!("intention {meant} was never recorded, although its writer tried again");
            self.violate(Invariant::NoLoss, what);
        }
    }

    pub(super) fn committed(&mut self, draft: Draft) -> MessageNo {
        if let Some(meant) = draft.meant {
            let twice = self.meant.insert(meant, true) == Some(true);
            self.demand(Invariant::NoGhost, !twice, || {
                format!("intention {meant} was recorded twice")
            });
        }
        let no = self.messages.len() as MessageNo;
        let mut sequence = None;
        if draft.sequenced {
            if draft.copy_of.is_none() {
                let last = self.sequences.entry(draft.aggregate).or_default();
                *last += 1;
                sequence = Some(*last);
            }
            self.order.entry(draft.aggregate).or_default().push(no);
        }
        self.by_id.insert(draft.id, no);
        let Draft {
            aggregate, poison, ..
        } = draft;
        let delayed = draft.available_at.is_some();
        self.history.note(format!(
            "message {no} of aggregate {aggregate} is committed: number {sequence:?}, delayed: {delayed}, poison: {poison:?}"
        ));
        let free = draft.poison == Poison::Unreadable && self.on_poison == PoisonPolicy::Continue;
        self.messages.push(Account::new(draft, sequence, free));
        no
    }

    pub(super) fn no_of(&self, id: MessageId) -> Option<MessageNo> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = MessageId> {
        self.messages.iter().map(|account| account.draft.id)
    }

    pub(super) fn account(&self, no: MessageNo) -> &Account {
        &self.messages[no as usize]
    }

    fn account_mut(&mut self, no: MessageNo) -> &mut Account {
        &mut self.messages[no as usize]
    }

    pub(super) fn skipped(&mut self, no: MessageNo) {
        self.account_mut(no).free = true;
    }

    pub(super) fn retried(&mut self, no: MessageNo) {
        let account = self.account_mut(no);
        account.faults = (0, 0);
        account.attempts = 0;
    }

    pub(super) fn heal(&mut self) {
        for message in &mut self.messages {
            if message.draft.poison != Poison::Unreadable {
                message.draft.poison = Poison::None;
            }
        }
    }

    pub(super) fn started(&mut self, relay: u32) -> Life {
        let life = self.lives.len() as Life;
        self.lives.push(LifeAccount::default());
        self.history.note(format!("run {life}, of relay {relay}, begins"));
        life
    }

    pub(super) fn resumed(&mut self, life: Life) {
        self.history.note(format!("run {life} resumes"));
        self.lives[life as usize].resumed_at = Some(Instant::now());
    }

    pub(super) fn stood_still_since(&self, life: Life, time: Instant) -> bool {
        self.lives[life as usize].resumed_at.is_some_and(|at| at >= time)
    }

    pub(super) fn ended(&mut self, life: Life, how: &'static str) {
        self.history.note(format!("run {life} ends: {how}"));
        let confirmed = std::mem::take(&mut self.lives[life as usize].confirmed);
        for no in confirmed {
            self.account_mut(no).excuses += 1;
        }
    }

    pub(super) fn fetched(&mut self, life: Life, blocked: bool, due: &[i64], waits: &[i64]) {
        if due.is_empty() && waits.is_empty() {
            return;
        }
        self.given_by_table(life, due);
        let find = |row_id: &i64| self.by_row_id.get(row_id).copied();
        let [due, waits] = [due, waits].map(|rows| rows.iter().filter_map(find).collect::<Vec<_>>());
        let query = if blocked { "blocked" } else { "pending" };
        self.history
            .note(format!("run {life} fetches {query} {due:?}, to wait {waits:?}"));
    }

    pub(super) fn knows_row(&self, row_id: i64) -> bool {
        self.by_row_id.contains_key(&row_id)
    }

    pub(super) fn learn_row(&mut self, row_id: i64, id: MessageId) {
        if let Some(no) = self.no_of(id) {
            self.by_row_id.insert(row_id, no);
        }
    }

    pub(super) fn sent(&mut self, life: Life, message: &Message) -> Option<MessageNo> {
        let Some(no) = self.no_of(message.id) else {
            self.violate(
                Invariant::NoGhost,
                format!("relay run {life} sent a message that was never committed"),
            );
            return None;
        };
        self.history.note(format!("run {life} sends message {no}"));
        let account = self.account(no);
        let is_whole = *message.payload == *account.draft.payload
            && message.aggregate.id == account.draft.aggregate.to_string()
            && (account.draft.copy_of.is_some() || message.sequence == account.sequence);
        self.demand(Invariant::NoGhost, is_whole, || {
            format!("message {no} was sent with another content than was committed")
        });
        if self.lives[life as usize].reconciles.is_some() {
            self.sent_again(life, no);
            return Some(no);
        }
        self.check_paused(life, no, &message.aggregate.aggregate_type);
        let account = self.account_mut(no);
        account.sends += 1;
        let (partition, aggregate, sequenced) = (
            account.draft.partition,
            account.draft.aggregate,
            account.draft.sequenced,
        );
        let owner = self.granted(partition).map(|granted| granted.life);
        let is_misled = owner != Some(life) && !self.is_of_log(life, no) && self.is_misled(life, partition);
        if is_misled {
            // The run had fetched the message before the clock jump, and a later owner has sent the
            // message since.
            let account = self.account_mut(no);
            account.excuses += u32::from(account.appeared);
        }
        // A replaced reader may send copies until it detects its replacement.
        let is_of_log = self.lives[life as usize].ever_given.contains(&no);
        let may_send = owner == Some(life) || is_misled || is_of_log || !self.wrong.keeps_leases();
        self.demand(Invariant::Exclusive, may_send, || {
            format!("relay run {life} sent message {no} of partition {partition}, which {owner:?} holds")
        });
        if sequenced {
            self.check_alone(life, no, aggregate);
        }
        Some(no)
    }

    fn check_alone(&mut self, life: Life, no: MessageNo, aggregate: u32) {
        if self.has_log && self.account(no).appeared {
            return;
        }
        let in_flight = &mut self.lives[life as usize].in_flight;
        let is_alone = !in_flight.contains_key(&aggregate);
        let other = *in_flight.entry(aggregate).or_insert(no);
        let is_copy = other == no || self.account(other).was_confirmed;
        // The log does not wait for a retried dead letter, nor for a copy without a checked order.
        let is_free = self.account(no).free || self.account(other).free;
        let is_unordered = !self.are_ordered(no.min(other), no.max(other));
        let is_harmless = self.has_log && (is_copy || is_free || is_unordered);
        self.demand(Invariant::Order, is_alone || is_harmless, || {
            format!("relay run {life} sent message {no} while message {other} of aggregate {aggregate} was unconfirmed")
        });
    }

    pub(super) fn publish_done(
        &mut self,
        life: Life,
        no: MessageNo,
        answer: Option<Result<(), FailureClass>>,
    ) {
        let aggregate = self.account(no).draft.aggregate;
        if self.account(no).draft.sequenced {
            let in_flight = &mut self.lives[life as usize].in_flight;
            if in_flight.get(&aggregate) == Some(&no) {
                in_flight.remove(&aggregate);
            }
        }
        self.history.note(format!(
            "run {life}: the broker answers to message {no}: {answer:?}"
        ));
        if self.lives[life as usize].reconciles.is_some() {
            return;
        }
        // The next owner may have sent the message before this result arrived.
        let partition = usize::from(self.account(no).draft.partition);
        let is_late = self.acquired_by[partition] != Some(life);
        self.account_mut(no).was_confirmed |= answer == Some(Ok(()));
        if answer == Some(Ok(())) && self.is_of_log(life, no) {
        } else if answer == Some(Ok(())) && !is_late {
            self.lives[life as usize].confirmed.insert(no);
        } else {
            self.account_mut(no).excuses += 1;
        }
    }

    pub(super) fn settling(&mut self, life: Life, is_answered: bool) {
        // `settles_in_vain` is cleared only when the relay receives the response, because the relay
        // may stop waiting earlier.
        self.lives[life as usize].settles_in_vain |= !is_answered;
    }

    pub(super) fn settlement_heard(&mut self, life: Life) {
        self.lives[life as usize].settles_in_vain = false;
    }

    /// Checks accepted settlements. `answered`: whether the response reaches the relay in time.
    pub(super) fn settled(
        &mut self,
        life: Life,
        leases: &[Lease],
        settlements: &[Settlement],
        accepted: usize,
        answered: bool,
    ) {
        let mut expected = 0;
        for settlement in settlements {
            let partition = settlement.partition;
            let is_live = leases
                .iter()
                .any(|lease| lease.partition == partition && self.holds(partition, lease.epoch));
            let is_live = is_live || !self.wrong.keeps_leases();
            expected += usize::from(is_live);
            if let Some(no) = self.by_row_id.get(&settlement.row_id).copied() {
                self.settled_one(life, no, &settlement.verdict, is_live, answered);
            }
        }
        self.demand(Invariant::Fence, accepted == expected, || {
            format!(
                "relay run {life}: {accepted} of {} verdicts were accepted, its leases cover {expected}",
                settlements.len()
            )
        });
    }

    fn settled_one(&mut self, life: Life, no: MessageNo, verdict: &Verdict, accepted: bool, answered: bool) {
        self.history.note(format!(
            "run {life} settles message {no}: {verdict:?}, accepted: {accepted}"
        ));
        // A refusal that arrives late belongs to an earlier send.
        let is_published = matches!(verdict, Verdict::Published { .. });
        let was_confirmed = is_published && self.lives[life as usize].confirmed.remove(&no);
        let attempts_max = self.attempts_max;
        let account = self.account_mut(no);
        if !accepted {
            account.excuses += u32::from(was_confirmed);
            return;
        }
        match verdict {
            Verdict::Published { .. } => {
                account.settled_at.get_or_insert_with(Instant::now);
                let appeared = account.appeared;
                self.demand(Invariant::NoLoss, appeared, || {
                    format!("message {no} was settled as published and was never on the stream")
                });
            }
            Verdict::Blocked { attempt: true, .. } | Verdict::Dead { .. } => {
                let dies = matches!(verdict, Verdict::Dead { .. });
                account.attempts += 1;
                // The relay repeats a settlement without a response. Each call to
                // [`OutboxStore::settle`](outbox_core::OutboxStore::settle) uses an attempt. The
                // first of two calls may arrive last.
                account.may_repeat += u32::from(!answered);
                account.may_die_again |= !answered && dies;
                let (permanent, unclassified) = account.faults;
                let explained = permanent + unclassified + account.may_repeat;
                let is_unreadable = account.draft.poison == Poison::Unreadable;
                let fair = is_unreadable || account.attempts <= explained;
                let may_die = is_unreadable
                    || permanent > 0
                    || account.may_die_again
                    || unclassified + account.may_repeat >= attempts_max;
                let fair = fair && (may_die || !dies);
                let used = account.attempts;
                self.demand(Invariant::Attempts, fair, || {
                    format!("message {no}: {verdict:?}, {used} attempts, for {permanent} + {unclassified} refusals of its own fault")
                });
            }
            Verdict::Waits | Verdict::Paused | Verdict::Blocked { .. } => {}
        }
    }

    pub(super) fn check_sends(&mut self) {
        let excess = self
            .messages
            .iter()
            .position(|account| account.sends > 1 + account.excuses);
        if let Some(no) = excess {
            let Account { sends, excuses, .. } = self.messages[no];
            self.violate(
                Invariant::Duplicates,
                format!(
                    "message {no} was sent {sends} times; faults explain {}",
                    1 + excuses
                ),
            );
        }
    }
}
