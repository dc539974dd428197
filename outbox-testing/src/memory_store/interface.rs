//! The store traits of the in-memory outbox.

use super::MemoryStore;
use super::state::State;
use crate::store_methods;
use crate::store_types::*;

macro_rules! on_state {
    ($self:ident, $method:ident($($argument:expr),*)) => {
        $self.call(stringify!($method), |state| state.$method($($argument),*))
    };
}

/// Implements methods that may make messages due, and wakes the relays.
macro_rules! on_state_and_wake {
    ($self:ident, $method:ident($($argument:expr),*)) => {{
        let result = $self.call(stringify!($method), |state| state.$method($($argument),*));
        outbox_core::wake::notify();
        result
    }};
}

macro_rules! on_leases {
    ($self:ident, $method:ident($($argument:expr),*)) => {
        $self.call(stringify!($method), |state| state.leases.$method($($argument),*))
    };
}

impl OutboxStore for MemoryStore {
    store_methods!(self, on_state; fetch fetch_waiting purge pauses backlog);
    store_methods!(self, on_state_and_wake; finish_pauses);
    store_methods!(self, on_leases; announce relays acquire renew release leave);

    async fn preflight(&self, _: bool) -> Result<Vec<SetupProblem>, StoreError> {
        self.call("preflight", |_| Vec::new())
    }

    async fn settle(&self, leases: &[Lease], settlements: &[Settlement]) -> Result<usize, StoreError> {
        let settle = |state: &mut State| {
            if state.refuses(settlements) {
                return Err(StoreError::Refused {
                    context: "settle",
                    source: Box::from("injected fault: the store refuses a verdict"),
                });
            }
            Ok(state.settle(leases, settlements))
        };
        let result = self.call("settle", settle).flatten();
        self.shared.settled.notify_waiters();
        result
    }
}

impl OutboxAdmin for MemoryStore {
    store_methods!(self, on_state; list page blocked forget_idle published);
}

impl OutboxReader for MemoryStore {
    store_methods!(self, on_state; find recorded_between search_published head);
    store_methods!(self, on_leases; expired_relays partitions);

    async fn block(&self, aggregate: &Aggregate) -> Result<Option<BlockedAggregate>, StoreError> {
        self.call("block", |state| state.block_of(aggregate))
    }
}

impl OutboxAudit for MemoryStore {
    store_methods!(self, on_state; forget_as pause_as unpause_as write_down finish operations operation messages_of);
    store_methods!(self, on_state_and_wake; resume_as);

    async fn advance(&self, operation: &Operation, at_most: NonZeroU32) -> Result<Operation, StoreError> {
        let advanced = self.call("advance", |state| state.advance(operation, at_most));
        outbox_core::wake::notify();
        advanced.flatten()
    }
}
