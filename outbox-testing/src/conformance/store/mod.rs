//! Conformance suite of [`OutboxStore`](outbox_core::OutboxStore),
//! [`OutboxAdmin`](outbox_core::OutboxAdmin), [`OutboxReader`](outbox_core::OutboxReader) and
//! [`OutboxAudit`].
//!
//! Invariant: the fixture's outbox is empty and its leases are free.

mod admin;
mod audit;
mod block;
mod dead_letter;
mod delay;
mod fetch;
mod forget;
mod lease;
mod operation;
mod pause;
mod reader;
mod record;
mod registry;
mod retention;
mod settle;
pub(in crate::conformance) mod support;

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use time::OffsetDateTime;

use outbox_core::message::{Events, MessageId};
use outbox_core::store::OutboxAudit;

pub use admin::*;
pub use audit::*;
pub use block::*;
pub use dead_letter::*;
pub use delay::*;
pub use fetch::*;
pub use forget::*;
pub use lease::*;
pub use operation::*;
pub use pause::*;
pub use reader::*;
pub use record::*;
pub use registry::*;
pub use retention::*;
pub use settle::*;

/// One outbox without other users.
pub trait StoreFixture: Send + Sync + 'static {
    /// The store type under test.
    type Store: OutboxAudit;
    /// An open transaction with recorded events.
    type Open: OpenTransaction;

    /// Whether two write transactions can be open at once. Default: `true`; `false` for SQLite.
    fn overlapping_transactions(&self) -> bool {
        true
    }

    /// The store under test.
    fn store(&self) -> &Self::Store;

    /// The store's clock.
    fn now(&self) -> impl Future<Output = OffsetDateTime> + Send;

    /// Records the events in one transaction and commits it. On an error, nothing is recorded.
    fn commit(&self, events: Events) -> impl Future<Output = Result<(), Refused>> + Send;

    /// Records the events in one transaction and rolls it back.
    fn roll_back(&self, events: Events) -> impl Future<Output = Result<(), Refused>> + Send;

    /// Records the events and leaves the transaction open. Until the transaction ends, the suite
    /// records events only of other aggregates, because writers of one aggregate may block each
    /// other. Called only with [`Self::overlapping_transactions`].
    fn begin(&self, events: Events) -> impl Future<Output = Result<Self::Open, Refused>> + Send;

    /// Expires all leases now.
    fn expire_leases(&self) -> impl Future<Output = ()> + Send;

    /// Sets the row id counter back, so that new row ids fall or repeat, as far as the database
    /// allows.
    fn set_back_row_ids(&self) -> impl Future<Output = ()> + Send;

    /// Makes leases and announcements end later, as if the store's clock were set back.
    fn set_clock_back(&self, by: Duration) -> impl Future<Output = ()> + Send;

    /// Makes the stored headers of a message unreadable.
    fn corrupt(&self, id: MessageId) -> impl Future<Output = ()> + Send;
}

/// An open transaction with recorded events.
pub trait OpenTransaction: Send + 'static {
    /// Commits the transaction.
    fn commit(self) -> impl Future<Output = ()> + Send;

    /// Rolls the transaction back.
    fn roll_back(self) -> impl Future<Output = ()> + Send;
}

/// The reason why events were not recorded.
pub type Refused = Box<dyn Error + Send + Sync>;

/// Generates the tests of a store from test attributes and an expression (may await): an `Option`
/// of a fresh [`StoreFixture`](crate::conformance::store::StoreFixture). `None` skips the test.
#[macro_export]
macro_rules! store_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(store, [$(#[$($test)*])+], $fixture, [
            leases_are_exclusive,
            acquire_takes_at_most_the_requested_number,
            each_acquisition_raises_the_epoch,
            leases_are_renewed_only_while_owned,
            released_partitions_are_free_immediately,
            a_stale_release_frees_nothing,
            a_healthy_store_passes_its_preflight,
            relays_are_counted_until_their_announcement_expires,
            relays_are_counted_by_their_last_announcement,
            leaving_releases_leases_and_announcement,
            registrations_are_listed,
            relays_of_another_destination_are_counted,
            expired_relays_are_listed,
            leases_ahead_of_the_clock_are_shortened,
            a_rollback_leaves_no_trace_and_no_hole,
            concurrent_writers_leave_no_hole,
            a_repeated_deduplication_key_is_rejected,
            unsequenced_messages_use_no_sequence,
            a_large_batch_keeps_its_order,
            odd_aggregate_ids_stay_distinct,
            an_invalid_event_is_rejected,
            fetch_returns_recorded_messages,
            a_limited_fetch_continues_where_it_stopped,
            only_leased_partitions_are_fetched,
            a_late_commit_is_not_skipped,
            a_row_id_counter_set_back_keeps_the_order,
            messages_in_flight_of_a_former_owner_come_first,
            a_block_orders_by_sequence,
            rows_in_flight_are_skipped,
            a_byte_bound_ends_a_fetch,
            an_unreadable_row_is_returned_as_an_error,
            messages_of_a_blocked_aggregate_wait_alone,
            a_fetch_examines_at_most_its_limit,
            an_ended_block_returns_its_messages_in_order,
            a_message_that_fails_again_blocks_again,
            a_fetch_of_waiting_messages_keeps_its_bounds,
            excluded_aggregates_are_skipped,
            waiting_rows_in_flight_are_skipped,
            only_leased_partitions_return_waiting_messages,
            the_block_that_ended_first_comes_first,
            a_block_ends_with_its_last_waiting_message,
            a_message_recorded_while_a_block_drains_keeps_its_place,
            setting_aside_without_a_block_changes_nothing,
            unsequenced_messages_neither_block_nor_halt,
            an_unsequenced_failure_waits_alone,
            failures_and_attempts_are_counted_separately,
            a_halted_aggregate_stays_halted,
            a_delayed_message_holds_back_its_aggregate,
            several_delayed_messages_keep_their_order,
            a_delayed_message_behind_a_block_waits_for_its_own_time,
            an_older_message_ignores_the_delay_of_a_later_message,
            waiting_messages_do_not_overtake_pending_messages,
            a_delayed_unsequenced_message_waits_alone,
            a_stale_epoch_settles_nothing,
            a_released_lease_settles_nothing,
            a_stale_lease_does_not_affect_other_leases,
            a_published_message_is_kept_or_deleted,
            settling_again_changes_nothing,
            a_late_verdict_changes_nothing,
            verdicts_need_the_message_id,
            a_long_error_text_can_be_settled,
            a_dead_letter_without_halt_lets_a_block_drain,
            retry_releases_a_halted_aggregate,
            a_retried_message_comes_before_its_successors,
            a_dead_letter_without_halt_can_be_retried_under_a_block,
            retry_and_skip_change_dead_letters_only,
            a_message_rejected_during_a_halt_waits_in_order,
            skip_releases_a_halted_aggregate,
            skip_of_the_only_message_removes_the_block,
            retry_and_skip_take_a_selection,
            backlog_counts_waiting_messages_and_dead_letters,
            backlog_age_covers_failed_messages,
            pages_begin_with_the_newest_messages,
            messages_are_listed_oldest_first,
            a_selection_narrows_the_list,
            blocked_aggregates_are_listed_halted_first,
            resume_ends_a_block,
            resume_does_not_end_a_halt,
            a_recently_published_message_is_not_purged,
            a_deduplication_key_outlives_its_message,
            purge_continues_until_it_ends,
            published_messages_are_read_in_pages,
            replay_places_copies_after_all_recorded_messages,
            later_messages_stay_behind_replayed_copies,
            replay_takes_a_selection,
            a_replayed_copy_is_an_ordinary_message,
            nothing_is_left_of_a_forgotten_aggregate,
            unpublished_messages_are_not_forgotten,
            only_idle_aggregates_are_forgotten,
            recorded_messages_are_read_in_pages,
            a_search_among_published_messages_is_bounded,
            a_message_is_found_with_its_payload,
            the_head_of_an_aggregate_is_found,
            partitions_are_listed_with_their_owners,
            paused_messages_wait_until_the_pause_is_finished,
            an_inactive_pause_holds_no_message,
            pauses_are_listed_and_replaced,
            a_pause_with_a_duration_expires,
            a_halted_aggregate_stays_halted_under_a_pause,
            a_delayed_message_keeps_its_time_after_a_pause,
            an_operation_is_recorded_with_its_changes,
            an_operation_continues_at_its_position,
            an_operation_skips_its_own_messages,
            two_callers_of_an_operation_take_each_message_once,
            two_operations_count_each_message_once,
            a_bounded_operation_takes_the_first_messages,
            resume_and_forget_are_recorded,
            an_operation_with_external_effects_is_recorded,
            operations_are_listed_newest_first,
            the_messages_of_an_operation_are_found,
            pause_and_unpause_are_recorded,
            a_repeated_pause_changes_nothing,
        ]);
    };
}
