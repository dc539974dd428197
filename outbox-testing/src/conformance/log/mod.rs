//! Conformance suite of [`MessageLog`].
//!
//! Invariant: the fixture's outbox is empty, and its log is set up and has no reader.

mod adoption;
mod look;
mod opening;
mod reading;
mod support;

use std::future::Future;

use super::store::StoreFixture;
use outbox_core::log::{Logged, MessageLog};
use outbox_core::message::Events;

pub use adoption::*;
pub use look::*;
pub use opening::*;
pub use reading::*;

/// Sets up one outbox for the suite. New messages are
/// [`Logged`](outbox_core::store::MessageStatus::Logged).
pub trait LogFixture: Send + Sync + 'static {
    /// The log type under test.
    type Log: MessageLog;
    /// The outbox of the log.
    type Outbox: StoreFixture;

    /// The log under test.
    fn log(&self) -> &Self::Log;

    /// The outbox of the log.
    fn outbox(&self) -> &Self::Outbox;

    /// Writes something to the log that is not a message.
    fn write_elsewhere(&self) -> impl Future<Output = ()> + Send;

    /// Ends the open reading, as a broken connection does.
    fn interrupt(&self) -> impl Future<Output = ()> + Send;

    /// Ends the open reading and replaces the log by an empty log. Other state stays.
    fn lose(&self) -> impl Future<Output = ()> + Send;

    /// Commits events. The log may deliver them, but the table hides them until [`Self::show`].
    fn commit_unseen(&self, events: Events) -> impl Future<Output = Vec<Logged>> + Send;

    /// Makes the events of [`Self::commit_unseen`] visible in the table.
    fn show(&self) -> impl Future<Output = ()> + Send;
}

/// Generates the tests of a log from test attributes and an expression (may await): an `Option` of
/// a fresh [`LogFixture`](crate::conformance::log::LogFixture). `None` skips the test.
#[macro_export]
macro_rules! log_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(log, [$(#[$($test)*])+], $fixture, [
            a_healthy_log_passes_its_preflight,
            a_reading_returns_every_message_once,
            a_log_message_equals_its_table_row,
            transactions_come_whole_and_in_commit_order,
            the_log_never_returns_rolled_back_messages,
            an_idle_reading_reports_its_position,
            unrelated_writes_advance_a_reading,
            a_dropped_wait_for_the_log_loses_nothing,
            undecided_messages_increase_the_retained_log,
            one_reader_at_a_time,
            closed_reader_lets_another_relay_read,
            a_reading_starts_after_the_stored_position,
            a_replaced_reader_cannot_confirm,
            an_interrupted_reading_ends,
            a_lost_log_loses_no_message,
            a_dropped_opening_leaves_nothing,
            a_dropped_confirmation_can_be_repeated,
            a_look_returns_aggregates_that_the_table_serves_first,
            a_look_reports_whether_there_are_exceptions,
            a_look_reports_a_flood_of_pending_messages,
            a_look_returns_the_database_clock,
            a_look_returns_the_logged_messages,
            adopted_messages_come_from_the_table,
            only_logged_messages_are_adopted,
            messages_before_the_position_are_not_adopted,
            an_adoption_returns_the_messages_of_the_table,
            an_adoption_returns_deleted_messages,
            an_invisible_message_does_not_count_as_deleted,
            a_dropped_adoption_is_atomic,
            a_new_reading_returns_the_end_of_adopted_messages,
            purge_keeps_messages_after_the_stored_position,
            logged_messages_are_kept_for_their_retention,
        ]);
    };
}
