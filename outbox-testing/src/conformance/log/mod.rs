//! Conformance suite of [`MessageLog`]. A function panics if its rule is violated.
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

    /// Writes to the log something that is not a message.
    fn write_elsewhere(&self) -> impl Future<Output = ()> + Send;

    /// Ends the open reading, as a broken connection does.
    fn interrupt(&self) -> impl Future<Output = ()> + Send;

    /// Ends the open reading and replaces the log by an empty one. Other state stays.
    fn lose(&self) -> impl Future<Output = ()> + Send;

    /// Commits events that the log may deliver, hidden from the table until [`Self::show`].
    fn commit_unseen(&self, events: Events) -> impl Future<Output = Vec<Logged>> + Send;

    /// Makes the commit of [`Self::commit_unseen`] visible.
    fn show(&self) -> impl Future<Output = ()> + Send;
}

/// Generates the tests of a log from test attributes and an `Option` of a fresh
/// [`LogFixture`](crate::conformance::log::LogFixture). The expression may await; `None` skips the
/// test.
#[macro_export]
macro_rules! log_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(log, [$(#[$($test)*])+], $fixture, [
            a_healthy_log_passes_its_preflight,
            a_reading_gives_every_message_once,
            a_message_of_the_log_is_the_row_of_the_table,
            transactions_come_whole_and_in_the_order_of_their_commits,
            what_is_rolled_back_never_comes_from_the_log,
            a_reading_tells_where_it_begins,
            what_is_written_elsewhere_moves_a_reading,
            a_dropped_wait_for_the_log_loses_nothing,
            what_is_kept_grows_with_what_is_not_decided,
            one_reader_at_a_time,
            a_reader_that_is_gone_lets_another_read,
            a_reading_goes_on_behind_the_stored_position,
            a_replaced_reader_cannot_confirm,
            an_interrupted_reading_ends,
            a_lost_log_loses_no_message,
            a_dropped_opening_leaves_nothing,
            a_dropped_confirmation_can_be_repeated,
            a_look_tells_what_the_table_comes_first_for,
            a_look_tells_whether_there_is_any_exception,
            a_flood_of_pending_messages_is_told,
            a_look_tells_the_time_of_the_database,
            a_look_tells_which_messages_are_logged,
            adopted_messages_come_from_the_table,
            only_logged_messages_are_adopted,
            what_the_position_has_passed_is_not_adopted,
            an_adoption_tells_what_the_table_holds,
            what_was_deleted_is_told_by_an_adoption,
            what_cannot_be_seen_yet_is_not_taken_for_gone,
            a_dropped_adoption_is_whole_or_nothing,
            a_new_reading_knows_up_to_where_messages_were_adopted,
            only_what_the_stored_position_has_passed_is_purged,
            logged_messages_are_kept_for_their_retention,
        ]);
    };
}
