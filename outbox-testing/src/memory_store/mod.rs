//! An in-memory outbox with the guarantees of a database.
//!
//! Like a database, the outbox assigns row ids on recording and sequences on commit. Invariant:
//! every method is one step under one lock. Writers of one aggregate do not block each other.

mod interface;
mod row;
mod state;
mod transaction;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::Notify;

use self::state::{Log, LoggedCommit, State};
use super::faults::take_one;
use outbox_core::log::{Logged, Look, LookRequest, Position};
use outbox_core::message::{Aggregate, IntoEvents, Limits, Message, MessageId};
use outbox_core::payload::{self, Decode, EventCodec};
use outbox_core::store::{Lease, OperationId, OwnerId, PurgeRequest, Purged, StoreError};

pub use row::StoredRow;
pub use transaction::{DuplicateKey, MemoryTransaction, RecordError};

/// An in-memory outbox. Clones share their state.
///
/// ```
/// # use outbox_core::DomainEvent;
/// # use outbox_testing::MemoryStore;
/// # #[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
/// # #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// let store = MemoryStore::new();
/// let mut transaction = store.begin();
/// transaction.record([OrderPlaced { order_id: 7 }])?;
/// transaction.commit()?;
///
/// assert_eq!(store.recorded::<OrderPlaced>()[0].order_id, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The clock of the store starts at 2026-01-01 00:00 UTC, or at the time of [`Self::starting_at`],
/// and runs with Tokio's clock.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    settled: Notify,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty outbox.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(time::macros::datetime!(2026-01-01 00:00 UTC))
    }

    /// An empty outbox with a clock that starts at `time`.
    #[must_use]
    pub fn starting_at(time: OffsetDateTime) -> Self {
        let shared = Shared {
            state: Mutex::new(State::new(time)),
            settled: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Replaces the limits on recorded messages.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        self.lock().limits = limits;
        self
    }

    /// Ends the log: new messages have the status `pending` instead of `logged`.
    pub fn end_log(&self) {
        self.with_log(|log| log.set_on(false));
    }

    pub(super) fn with_log<R>(&self, work: impl FnOnce(&mut Log) -> R) -> R {
        let result = work(&mut self.lock().log);
        self.shared.settled.notify_waiters();
        result
    }

    /// Opens a reading. Returns its number, its start position, and the position of the last
    /// message that was changed from logged to pending.
    pub(super) fn open_log(&self) -> Result<Option<(u64, Position, Position)>, StoreError> {
        let opened = self.call("open the log", |state| {
            if state.log.reader.is_some() {
                return None;
            }
            state.adopt_lost();
            state.log.readings += 1;
            state.log.reader = Some(state.log.readings);
            Some((state.log.readings, state.log.stored, state.log.adopted_to))
        });
        if opened.is_err() {
            self.with_log(|log| log.reader = None);
        }
        opened
    }

    pub(super) fn logged_behind(&self, position: Position) -> Option<LoggedCommit> {
        self.lock().log.behind(position)
    }

    pub(super) fn written(&self) -> Result<Position, StoreError> {
        self.call("ask for the end of the log", |state| state.log.written())
    }

    pub(super) fn look(&self, request: LookRequest<'_>) -> Result<Look, StoreError> {
        self.call("look at the table", |state| state.look(request))
    }

    pub(super) fn adopt(&self, messages: &[Logged]) -> Result<Vec<MessageId>, StoreError> {
        self.call("adopt messages", |state| state.adopt(messages))
    }

    pub(super) fn purge_logged(&self, request: PurgeRequest) -> Result<Purged, StoreError> {
        self.call("purge logged messages", |state| state.purge_logged(request))
    }

    /// Begins a transaction. Several transactions may be open at once.
    pub fn begin(&self) -> MemoryTransaction {
        MemoryTransaction::new(self.clone())
    }

    /// Records events in a new transaction and commits it.
    ///
    /// # Errors
    ///
    /// As [`MemoryTransaction::record`] and [`MemoryTransaction::commit`]. Then nothing is
    /// recorded.
    pub fn record(&self, events: impl IntoEvents) -> Result<(), RecordError> {
        let mut transaction = self.begin();
        transaction.record(events)?;
        transaction.commit()?;
        Ok(())
    }

    /// The store's clock.
    #[must_use]
    pub fn now(&self) -> OffsetDateTime {
        self.lock().now()
    }

    /// Every committed message in the outbox, oldest first.
    #[must_use]
    pub fn rows(&self) -> Vec<StoredRow> {
        self.lock().rows.values().cloned().collect()
    }

    /// The committed events of one Rust type, oldest first.
    ///
    /// # Panics
    ///
    /// If a message of an event type of `E` has a version that `E` does not have, or cannot be
    /// decoded as `E`.
    #[must_use]
    pub fn recorded<E: EventCodec>(&self) -> Vec<E>
    where
        E::Codec: Decode<E>,
    {
        let versions = |message: &Message| -> Vec<_> {
            let wanted = E::DESCRIPTORS.iter();
            let wanted = wanted.filter(|wanted| wanted.event_type() == message.event_type);
            wanted.map(|wanted| wanted.version).collect()
        };
        let decoded = |message: &Message| {
            let (id, version) = (message.id, message.event_version);
            assert!(
                versions(message).contains(&version),
                "message {id} has version {version}, which the Rust type does not have"
            );
            match payload::decode(message) {
                Ok(event) => event,
                Err(error) => panic!("message {id} cannot be read back: {error}"),
            }
        };
        let state = self.lock();
        let messages = state.rows.values().map(|row| &row.message);
        messages
            .filter(|message| !versions(message).is_empty())
            .map(decoded)
            .collect()
    }

    /// Waits until no message is pending or waiting, including delayed and halted messages.
    pub async fn until_drained(&self) {
        loop {
            let settled = self.shared.settled.notified();
            tokio::pin!(settled);
            // The wait is registered before the state is read, so that no settlement is missed.
            settled.as_mut().enable();
            {
                let state = self.lock();
                if state.backlog().pending == 0 && state.log.is_freed() {
                    return;
                }
            }
            settled.await;
        }
    }

    /// Number of store calls so far, including failed calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock().faults.calls
    }

    /// Makes the next `calls` store calls fail without effect.
    pub fn fail_next(&self, calls: usize) {
        self.lock().faults.fail_next = calls;
    }

    /// Executes the next `calls` store calls but returns an error, as if the response were lost.
    pub fn lose_answers(&self, calls: usize) {
        self.lock().faults.lose_answers = calls;
    }

    /// While `down`, all store calls fail.
    pub fn set_down(&self, down: bool) {
        self.lock().faults.down = down;
    }

    /// Rejects every settlement of the messages `ids` with [`StoreError::Refused`]. An empty list
    /// ends the rejection.
    pub fn refuse_verdicts(&self, ids: &[MessageId]) {
        self.lock().faults.refused = ids.iter().copied().collect();
    }

    /// Expires all leases now.
    pub fn expire_leases(&self) {
        self.lock().leases.expire();
    }

    /// Makes all leases and announcements end this much earlier, as a suspended machine does.
    pub fn age_leases(&self, by: Duration) {
        self.lock().leases.age(by);
    }

    /// Makes all leases and announcements end this much later, as a clock set back does.
    pub fn set_clock_back(&self, by: Duration) {
        self.lock().leases.set_back(by);
    }

    /// Number of live leases per relay.
    #[must_use]
    pub fn owners(&self) -> HashMap<OwnerId, usize> {
        self.lock().leases.owners()
    }

    /// Sets the last row that an operation has processed. Not public API.
    #[doc(hidden)]
    pub fn move_operation(&self, id: OperationId, position: i64) {
        self.lock().move_operation(id, position);
    }

    /// Makes a stored message unreadable. Returns `false` if the message does not exist.
    pub fn corrupt(&self, id: MessageId) -> bool {
        self.lock().corrupt(id)
    }

    /// The id of the message with this row id. Not public API.
    #[doc(hidden)]
    #[must_use]
    pub fn id_of(&self, row_id: i64) -> Option<MessageId> {
        self.lock().rows.get(&row_id).map(|row| row.message.id)
    }

    /// The current leases, including expired leases. Not public API.
    #[doc(hidden)]
    #[must_use]
    pub fn current_leases(&self) -> Vec<Lease> {
        self.lock().leases.current()
    }

    /// Skips a sequence. Not public API.
    #[doc(hidden)]
    pub fn use_up_number(&self, aggregate: &Aggregate) {
        self.lock().use_up_number(aggregate);
    }

    /// Deletes a row in any status. Not public API.
    #[doc(hidden)]
    pub fn discard(&self, row_id: i64) {
        self.lock().delete(row_id);
    }

    /// Removes ended pauses and keeps their messages held. Not public API.
    #[doc(hidden)]
    pub fn drop_ended_pauses(&self) {
        self.lock().drop_ended_pauses();
    }

    /// Frees all deduplication keys. Not public API.
    #[doc(hidden)]
    pub fn forget_dedup_keys(&self) {
        self.lock().forget_dedup_keys();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(&self, context: &'static str, work: impl FnOnce(&mut State) -> T) -> Result<T, StoreError> {
        let failed = |reason: &'static str| StoreError::Database {
            context,
            source: Box::from(reason),
        };
        let mut state = self.lock();
        state.faults.calls += 1;
        if state.faults.down || take_one(&mut state.faults.fail_next) {
            return Err(failed("injected fault: the store cannot be reached"));
        }
        let result = work(&mut state);
        if take_one(&mut state.faults.lose_answers) {
            return Err(failed("injected fault: the answer was lost, the work is done"));
        }
        Ok(result)
    }
}
