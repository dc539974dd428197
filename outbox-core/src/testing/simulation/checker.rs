//! The judge of a simulated world: it watches every commit, grant, send, arrival and verdict, and knows nothing of the relay's insides.
//!
//! Invariant: it keeps its own account of leases and messages and compares; the first violation is
//! kept. What must hold is listed at [`Invariant`]. Absent here: causing anything.

mod leases;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use time::OffsetDateTime;
use tokio::time::Instant;

use self::leases::Granted;
use super::history::{Event, History, Life, No};
use super::{Invariant, Wrong};
use crate::message::{MessageId, PARTITIONS};
use crate::publisher::FailureClass;
use crate::relay::PoisonPolicy;
use crate::store::{Lease, Settlement, Verdict};

/// Why the broker or the store refuses a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Poison {
    None,
    /// The broker never takes it.
    Permanent,
    /// The broker refuses it so many times, for no reason it tells.
    Unclassified(u32),
    /// The store cannot read it.
    Unreadable,
}

/// What a writer recorded.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) id: MessageId,
    pub(super) aggregate: u32,
    pub(super) partition: u16,
    pub(super) sequenced: bool,
    pub(super) available_at: Option<OffsetDateTime>,
    pub(super) poison: Poison,
    /// The message that it is a copy of.
    pub(super) copy_of: Option<No>,
}

/// A committed message and what became of it.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) draft: Draft,
    /// Its order is not promised: it was skipped, or given up while others went on.
    free: bool,
    pub(super) on_the_log: bool,
    copies: u32,
    sends: u32,
    /// Reasons to send it once more.
    excuses: u32,
    /// Refusals that were its own fault: for good, and for no known reason.
    faults: (u32, u32),
    /// Attempts that were counted, less those that a lost answer made count twice.
    attempts: u32,
    may_repeat: u32,
}

#[derive(Debug, Default)]
struct LifeAccount {
    resumed_at: Option<Instant>,
    /// Confirmed to it and not settled.
    confirmed: BTreeSet<No>,
    /// Aggregates of which a message is on its way.
    in_flight: BTreeSet<u32>,
}

#[derive(Debug)]
pub(super) struct Checker {
    wrong: Wrong,
    attempts_max: u32,
    on_poison: PoisonPolicy,
    pub(super) history: History,
    pub(super) violation: Option<(Invariant, String)>,
    pub(super) messages: Vec<Account>,
    by_id: HashMap<MessageId, No>,
    by_seq: HashMap<i64, No>,
    /// Sequenced messages of each aggregate, in the order of commits, copies behind.
    pub(super) order: BTreeMap<u32, Vec<No>>,
    sequences: BTreeMap<u32, u64>,
    lives: Vec<LifeAccount>,
    leases: Vec<Option<Granted>>,
    /// The broker forgot what it has.
    forgot: bool,
}

impl Account {
    /// Its order is not promised.
    pub(super) fn is_free(&self) -> bool {
        self.free
    }
}

impl Checker {
    pub(super) fn new(wrong: Wrong, attempts_max: u32, on_poison: PoisonPolicy) -> Self {
        Self {
            wrong,
            attempts_max,
            on_poison,
            history: History::new(),
            violation: None,
            messages: Vec::new(),
            by_id: HashMap::new(),
            by_seq: HashMap::new(),
            order: BTreeMap::new(),
            sequences: BTreeMap::new(),
            lives: Vec::new(),
            leases: vec![None; usize::from(PARTITIONS)],
            forgot: false,
        }
    }

    pub(super) fn violate(&mut self, invariant: Invariant, what: String) {
        if self.violation.is_none() {
            self.violation = Some((invariant, what));
        }
    }

    /// Only if `holds` does not.
    fn demand(&mut self, invariant: Invariant, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violate(invariant, what());
        }
    }

    // Writers and operators.

    pub(super) fn committed(&mut self, draft: Draft) -> No {
        let no = self.messages.len() as No;
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
        self.history.note(Event::Committed {
            no,
            aggregate: draft.aggregate,
            sequence,
            delayed: draft.available_at.is_some(),
            poison: draft.poison != Poison::None,
        });
        let free = draft.poison == Poison::Unreadable && self.on_poison == PoisonPolicy::ParkAndContinue;
        self.messages.push(Account {
            draft,
            free,
            on_the_log: false,
            copies: 0,
            sends: 0,
            excuses: 0,
            faults: (0, 0),
            attempts: 0,
            may_repeat: 0,
        });
        no
    }

    pub(super) fn no_of(&self, id: MessageId) -> Option<No> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn account(&self, no: No) -> &Account {
        &self.messages[no as usize]
    }

    fn account_mut(&mut self, no: No) -> &mut Account {
        &mut self.messages[no as usize]
    }

    pub(super) fn skipped(&mut self, no: No) {
        self.account_mut(no).free = true;
    }

    /// Broker and store take everything from now on, but what the store cannot read.
    pub(super) fn heal(&mut self) {
        for message in &mut self.messages {
            if message.draft.poison != Poison::Unreadable {
                message.draft.poison = Poison::None;
            }
        }
    }

    // Relays.

    pub(super) fn started(&mut self, relay: u32) -> Life {
        let life = self.lives.len() as Life;
        self.lives.push(LifeAccount::default());
        self.history.note(Event::Started { life, relay });
        life
    }

    pub(super) fn resumed(&mut self, life: Life) {
        self.history.note(Event::Resumed { life });
        self.lives[life as usize].resumed_at = Some(Instant::now());
    }

    pub(super) fn stood_still_since(&self, life: Life, time: Instant) -> bool {
        self.lives[life as usize].resumed_at.is_some_and(|at| at >= time)
    }

    /// Whatever it knew is gone.
    pub(super) fn ended(&mut self, life: Life, how: &'static str) {
        self.history.note(Event::Ended { life, how });
        let confirmed = std::mem::take(&mut self.lives[life as usize].confirmed);
        for no in confirmed {
            self.account_mut(no).excuses += 1;
        }
    }

    pub(super) fn fetched(&mut self, life: Life, held: bool, due: &[i64], waits: &[i64]) {
        if due.is_empty() && waits.is_empty() {
            return;
        }
        let find = |seq: &i64| self.by_seq.get(seq).copied();
        let event = Event::Fetched {
            life,
            held,
            due: due.iter().filter_map(find).collect(),
            waits: waits.iter().filter_map(find).collect(),
        };
        self.history.note(event);
    }

    pub(super) fn knows_seq(&self, seq: i64) -> bool {
        self.by_seq.contains_key(&seq)
    }

    pub(super) fn learn_seq(&mut self, seq: i64, id: MessageId) {
        if let Some(no) = self.no_of(id) {
            self.by_seq.insert(seq, no);
        }
    }

    /// A publish begins. `None` if nothing like it was committed.
    pub(super) fn sent(&mut self, life: Life, id: MessageId) -> Option<No> {
        let Some(no) = self.no_of(id) else {
            self.violate(
                Invariant::NoGhost,
                format!("relay run {life} sent a message that was never committed"),
            );
            return None;
        };
        self.history.note(Event::Sent { life, no });
        let account = self.account_mut(no);
        account.sends += 1;
        let (partition, aggregate, sequenced) = (
            account.draft.partition,
            account.draft.aggregate,
            account.draft.sequenced,
        );
        let owner = self.granted(partition).map(|granted| granted.life);
        let just_resumed = self.lives[life as usize].resumed_at == Some(Instant::now());
        let may_send = owner == Some(life) || just_resumed || !self.wrong.keeps_leases();
        self.demand(Invariant::Exclusive, may_send, || {
            format!("relay run {life} sent message {no} of partition {partition}, which {owner:?} holds")
        });
        if sequenced {
            let alone = self.lives[life as usize].in_flight.insert(aggregate);
            self.demand(Invariant::Order, alone, || {
                format!("relay run {life} sent message {no} while another of aggregate {aggregate} was unconfirmed")
            });
        }
        Some(no)
    }

    /// A publish is over: with its answer, or because nobody waits any more.
    pub(super) fn landed(&mut self, life: Life, no: No, answer: Option<Result<(), FailureClass>>) {
        let aggregate = self.account(no).draft.aggregate;
        if self.account(no).draft.sequenced {
            self.lives[life as usize].in_flight.remove(&aggregate);
        }
        self.history.note(match answer {
            Some(Ok(())) => Event::Confirmed { life, no },
            Some(Err(class)) => Event::Failed { life, no, class },
            None => Event::GaveUpWaiting { life, no },
        });
        if answer == Some(Ok(())) {
            self.lives[life as usize].confirmed.insert(no);
        } else {
            self.account_mut(no).excuses += 1;
        }
    }

    // Broker.

    /// The broker refuses the message for its own fault, if it has one.
    pub(super) fn own_fault(&mut self, no: No) -> Option<FailureClass> {
        let goes_on = self.on_poison == PoisonPolicy::ParkAndContinue;
        let original = self.account(no).draft.copy_of.unwrap_or(no);
        let class = match &mut self.account_mut(original).draft.poison {
            Poison::Permanent => FailureClass::Permanent,
            Poison::Unclassified(left @ 1..) => {
                *left -= 1;
                FailureClass::Unclassified
            }
            _ => return None,
        };
        let account = self.account_mut(no);
        match class {
            FailureClass::Permanent => account.faults.0 += 1,
            _ => account.faults.1 += 1,
        }
        account.free |= goes_on;
        Some(class)
    }

    pub(super) fn stored(&mut self, no: No, duplicate: bool, now: OffsetDateTime) {
        self.history.note(Event::Stored { no, duplicate });
        if duplicate {
            return;
        }
        let forgot = self.forgot;
        let account = self.account_mut(no);
        account.copies += 1;
        let (copies, first) = (account.copies, !account.on_the_log);
        account.on_the_log = true;
        let early = account.draft.available_at.is_some_and(|at| now < at);
        self.demand(Invariant::Duplicates, copies == 1 || forgot, || {
            format!("message {no} is on the stream {copies} times, and the broker forgot nothing")
        });
        self.demand(Invariant::Order, !early, || {
            format!("message {no} was published before its time")
        });
        if first {
            self.check_order(no);
        }
    }

    /// Everything that must come before it is on the log.
    fn check_order(&mut self, no: No) {
        let account = self.account(no);
        if account.free || !account.draft.sequenced {
            return;
        }
        let missing = self.order.get(&account.draft.aggregate).and_then(|order| {
            let earlier = order.iter().take_while(|other| **other != no);
            earlier.copied().find(|other| {
                let other = self.account(*other);
                // A copy stands behind what was recorded before it; what was recorded and not committed yet need not wait for it.
                let counts = account.draft.copy_of.is_some() || other.draft.copy_of.is_none();
                counts && !other.on_the_log && !other.free
            })
        });
        if let Some(missing) = missing {
            let aggregate = account.draft.aggregate;
            self.violate(
                Invariant::Order,
                format!("message {no} of aggregate {aggregate} appeared before message {missing}"),
            );
        }
    }

    pub(super) fn forgot(&mut self) {
        self.forgot = true;
    }

    // Verdicts.

    /// Verdicts reached the store, which says that it accepted so many. `answered` says that the relay hears of it.
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
            if let Some(no) = self.by_seq.get(&settlement.seq).copied() {
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

    fn settled_one(&mut self, life: Life, no: No, verdict: &Verdict, accepted: bool, answered: bool) {
        let name = match verdict {
            Verdict::Published { .. } => "published",
            Verdict::Waits => "waits",
            Verdict::Held { attempt: true, .. } => "held, attempt used",
            Verdict::Held { error: Some(_), .. } => "held",
            Verdict::Held { .. } => "held, due at once",
            Verdict::Parked { halt: true, .. } => "parked, halts",
            Verdict::Parked { .. } => "parked, others go on",
        };
        self.history.note(Event::Settled {
            life,
            no,
            verdict: name,
            accepted,
        });
        let was_confirmed = self.lives[life as usize].confirmed.remove(&no);
        let attempts_max = self.attempts_max;
        let account = self.account_mut(no);
        if !accepted {
            account.excuses += u32::from(was_confirmed);
            return;
        }
        match verdict {
            Verdict::Published { .. } => {
                let on_the_log = account.on_the_log;
                self.demand(Invariant::NoLoss, on_the_log, || {
                    format!("message {no} was settled as published and is not on the stream")
                });
            }
            Verdict::Held { attempt: true, .. } | Verdict::Parked { .. } => {
                account.attempts += 1;
                // The relay repeats what it does not know to be done.
                account.may_repeat += u32::from(!answered);
                let (permanent, unclassified) = account.faults;
                let is_unreadable = account.draft.poison == Poison::Unreadable;
                let fair = is_unreadable || account.attempts <= permanent + unclassified + account.may_repeat;
                let may_park =
                    is_unreadable || permanent > 0 || unclassified + account.may_repeat >= attempts_max;
                let fair = fair && (may_park || !matches!(verdict, Verdict::Parked { .. }));
                let used = account.attempts;
                self.demand(Invariant::Attempts, fair, || {
                    format!("message {no}: {name}, {used} attempts, for {permanent} + {unclassified} refusals of its own fault")
                });
            }
            Verdict::Waits | Verdict::Held { .. } => {}
        }
    }

    /// At the end: nothing was sent more often than the faults explain.
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
