//! What every [`OutboxStore`] and [`OutboxAdmin`] promises the relay.
//!
//! Each function takes a fixture whose outbox is empty and whose leases are free, and panics if its promise does not hold. Absent here:
//! how an application records; a fixture commits events in whatever way its integration offers.

mod admin;
mod fetch;
mod lease;
mod record;
mod settle;
mod support;

use std::error::Error;
use std::fmt;
use std::future::Future;

use time::OffsetDateTime;

use crate::message::{Aggregate, Events, MessageId};
use crate::store::{OutboxAdmin, OutboxStore};

pub use admin::{
    backlog_counts_what_waits_and_what_was_given_up, parked_messages_are_listed_oldest_first,
    retry_makes_a_parked_message_pending_again, retry_of_what_is_not_parked_does_nothing,
    retry_releases_a_halted_aggregate, skip_of_what_is_not_parked_does_nothing,
    skip_releases_a_halted_aggregate,
};
pub use fetch::{
    a_delayed_message_holds_back_its_aggregate, a_halted_aggregate_waits_and_others_flow,
    a_late_commit_is_not_skipped, a_limited_fetch_continues_where_it_stopped,
    a_parked_message_without_halt_lets_its_aggregate_flow, an_unreadable_row_is_returned_as_such,
    excluded_aggregates_are_left_out, fetch_keeps_the_order_of_each_aggregate,
    fetch_returns_what_was_recorded, only_leased_partitions_are_fetched,
    published_messages_are_not_fetched_again,
};
pub use lease::{
    a_lease_that_ran_out_can_be_taken_over, a_stale_release_frees_nothing, acquire_takes_no_more_than_asked,
    each_acquisition_raises_the_epoch, leases_are_exclusive, leases_are_renewed_only_while_held,
    released_partitions_are_free_at_once,
};
pub use record::{
    a_deduplication_key_is_refused_twice, a_large_batch_keeps_its_order,
    a_rollback_leaves_no_trace_and_no_hole, an_event_that_cannot_be_stored_is_refused,
    concurrent_writers_leave_no_hole, odd_aggregate_ids_stay_distinct, unsequenced_messages_take_no_number,
};
pub use settle::{
    a_failed_message_stays_pending_with_an_attempt_more, a_long_error_text_can_be_settled,
    a_released_lease_settles_nothing, a_stale_epoch_settles_nothing,
    one_stale_lease_does_not_hold_up_the_others, settling_again_changes_nothing,
};

/// Brings one back end into the states that the promises talk about.
///
/// One value stands for one outbox that nobody else uses: a schema, a database or a table prefix of its own.
pub trait StoreFixture: Send + Sync + 'static {
    /// The store under test.
    type Store: OutboxStore + OutboxAdmin;
    /// A transaction that has recorded events and is still open.
    type Held: HeldTransaction;

    /// What this back end can do.
    fn capabilities(&self) -> StoreCapabilities;

    /// The store under test.
    fn store(&self) -> &Self::Store;

    /// The store's clock.
    fn now(&self) -> impl Future<Output = OffsetDateTime> + Send;

    /// Records the events in one transaction and commits it. An error means that nothing was recorded.
    fn commit(&self, events: Events) -> impl Future<Output = Result<(), Refused>> + Send;

    /// Records the events in one transaction and rolls it back.
    fn roll_back(&self, events: Events) -> impl Future<Output = Result<(), Refused>> + Send;

    /// Records the events and leaves the transaction open. The suite commits other aggregates meanwhile, never the same one: writers
    /// of one aggregate may wait for each other. Called only with [`StoreCapabilities::overlapping_transactions`].
    fn hold(&self, events: Events) -> impl Future<Output = Result<Self::Held, Refused>> + Send;

    /// Makes all leases run out now, as if their time had passed.
    fn expire_leases(&self) -> impl Future<Output = ()> + Send;

    /// Makes the stored headers of a message unreadable, as another program's bug could.
    fn corrupt(&self, id: MessageId) -> impl Future<Output = ()> + Send;

    /// All rows of the outbox, in any order.
    fn rows(&self) -> impl Future<Output = Vec<RowState>> + Send;
}

/// A transaction that has recorded events and is still open.
pub trait HeldTransaction: Send + 'static {
    /// Commits it.
    fn commit(self) -> impl Future<Output = ()> + Send;

    /// Rolls it back.
    fn roll_back(self) -> impl Future<Output = ()> + Send;
}

/// Why events were not recorded.
pub type Refused = Box<dyn Error + Send + Sync>;

/// What a back end of [`StoreFixture`] can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreCapabilities {
    /// Two write transactions can be open at once. SQLite has one writer at a time, which makes late commits impossible.
    pub overlapping_transactions: bool,
    /// Published rows stay in the table for a while. False if the store deletes what it settles.
    pub keeps_published: bool,
}

/// One row of the outbox, as the suite compares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowState {
    /// The message's id.
    pub id: MessageId,
    /// Its aggregate.
    pub aggregate: Aggregate,
    /// Its number within the aggregate.
    pub sequence: Option<u64>,
    /// Where it stands.
    pub status: RowStatus,
    /// Attempts used.
    pub attempts: u32,
}

/// Where a message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowStatus {
    /// To be published.
    Pending,
    /// On the stream.
    Published,
    /// Given up.
    Parked,
}

impl fmt::Display for RowStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Published => "published",
            Self::Parked => "parked",
        })
    }
}

/// Makes one test per promise of a store. Takes the attributes of the tests, and an expression, which may await, for an
/// `Option` of a fresh [`StoreFixture`](crate::testing::conformance::store::StoreFixture); `None` skips.
///
/// ```
/// # #[allow(unused)]
/// mod promises {
///     use outbox_core::testing::conformance::memory::MemoryStoreFixture;
///
///     outbox_core::store_conformance!(#[tokio::test(start_paused = true)] Some(MemoryStoreFixture::new()));
/// }
/// ```
#[macro_export]
macro_rules! store_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(store, [$(#[$($test)*])+], $fixture, [
            leases_are_exclusive,
            acquire_takes_no_more_than_asked,
            each_acquisition_raises_the_epoch,
            leases_are_renewed_only_while_held,
            released_partitions_are_free_at_once,
            a_lease_that_ran_out_can_be_taken_over,
            a_stale_release_frees_nothing,
            a_rollback_leaves_no_trace_and_no_hole,
            concurrent_writers_leave_no_hole,
            a_deduplication_key_is_refused_twice,
            unsequenced_messages_take_no_number,
            a_large_batch_keeps_its_order,
            odd_aggregate_ids_stay_distinct,
            an_event_that_cannot_be_stored_is_refused,
            fetch_returns_what_was_recorded,
            fetch_keeps_the_order_of_each_aggregate,
            a_limited_fetch_continues_where_it_stopped,
            only_leased_partitions_are_fetched,
            a_late_commit_is_not_skipped,
            published_messages_are_not_fetched_again,
            a_halted_aggregate_waits_and_others_flow,
            a_parked_message_without_halt_lets_its_aggregate_flow,
            excluded_aggregates_are_left_out,
            a_delayed_message_holds_back_its_aggregate,
            an_unreadable_row_is_returned_as_such,
            a_stale_epoch_settles_nothing,
            a_released_lease_settles_nothing,
            one_stale_lease_does_not_hold_up_the_others,
            a_failed_message_stays_pending_with_an_attempt_more,
            settling_again_changes_nothing,
            a_long_error_text_can_be_settled,
            backlog_counts_what_waits_and_what_was_given_up,
            parked_messages_are_listed_oldest_first,
            retry_makes_a_parked_message_pending_again,
            retry_releases_a_halted_aggregate,
            retry_of_what_is_not_parked_does_nothing,
            skip_releases_a_halted_aggregate,
            skip_of_what_is_not_parked_does_nothing,
        ]);
    };
}
