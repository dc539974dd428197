//! The in-memory implementations keep every promise, and every planted mistake is noticed.
//!
//! For each mistake: the promise it breaks fails on the wrong implementation and holds on the right one, so it is the mistake that the suite
//! notices and nothing else.

use std::collections::BTreeSet;

use outbox_core::testing::conformance::memory::{
    MemoryPublisherFixture, MemorySourceFixture, MemoryStoreFixture,
};
use outbox_core::testing::conformance::{publisher, source, store};
use outbox_core::testing::wrong::{
    PublisherMistake, SourceMistake, StoreMistake, WriterMistake, WrongPublisher, WrongSource, WrongStore,
    WrongWriter,
};

mod memory_store {
    use super::MemoryStoreFixture;

    outbox_core::store_conformance!(
        #[tokio::test(start_paused = true)]
        Some(MemoryStoreFixture::new())
    );
}

mod memory_publisher {
    use super::MemoryPublisherFixture;

    outbox_core::publisher_conformance!(
        #[tokio::test(start_paused = true)]
        Some(MemoryPublisherFixture::new())
    );
}

mod memory_source {
    use super::MemorySourceFixture;

    outbox_core::source_conformance!(
        #[tokio::test(start_paused = true)]
        Some(MemorySourceFixture::new())
    );
}

/// One test per mistake: its promise fails on `$wrong(mistake)` and holds on `$right`.
macro_rules! noticed {
    ($suite:ident, $mistakes:ident, $right:expr, $wrong:expr, [$($test:ident: $mistake:ident => $promise:ident,)*]) => {
    $(
        #[tokio::test(start_paused = true)]
        async fn $test() {
            $suite::$promise(&$right).await;
            let wrong = $wrong($mistakes::$mistake);
            let outcome = tokio::spawn(async move { $suite::$promise(&wrong).await }).await;
            let noticed = outcome.is_err_and(|error| error.is_panic());
            assert!(noticed, "`{}` did not notice `{}`", stringify!($promise), stringify!($mistake));
        }
    )*

        /// A mistake without a test does not compile.
        #[allow(dead_code, unreachable_patterns)]
        fn every_mistake_has_a_test(mistake: $mistakes) {
            match mistake {
                $($mistakes::$mistake => {})*
            }
        }
    };
}

mod wrong_stores {
    use super::*;

    fn wrong(mistake: StoreMistake) -> MemoryStoreFixture<WrongStore> {
        MemoryStoreFixture::wrapping(|memory| WrongStore::new(memory, mistake))
    }

    noticed!(store, StoreMistake, MemoryStoreFixture::new(), wrong, [
        grants_held_leases: GrantsHeldLeases => leases_are_exclusive,
        ignores_max: IgnoresMax => acquire_takes_no_more_than_asked,
        reuses_epochs: ReusesEpochs => each_acquisition_raises_the_epoch,
        leases_for_ever: LeasesForEver => a_lease_that_ran_out_can_be_taken_over,
        renews_blindly: RenewsBlindly => leases_are_renewed_only_while_held,
        forgets_releases: ForgetsReleases => released_partitions_are_free_at_once,
        settles_what_was_released: ForgetsReleases => a_released_lease_settles_nothing,
        releases_for_others: ReleasesForOthers => a_stale_release_frees_nothing,
        fetches_by_cursor: FetchesByCursor => a_late_commit_is_not_skipped,
        fetches_out_of_order: FetchesOutOfOrder => fetch_keeps_the_order_of_each_aggregate,
        fetches_published: FetchesPublished => published_messages_are_not_fetched_again,
        ignores_partitions: IgnoresPartitions => only_leased_partitions_are_fetched,
        ignores_limit: IgnoresLimit => a_limited_fetch_continues_where_it_stopped,
        ignores_exclusions: IgnoresExclusions => excluded_aggregates_are_left_out,
        folds_case: FoldsCase => odd_aggregate_ids_stay_distinct,
        overtakes_delayed: OvertakesDelayed => a_delayed_message_holds_back_its_aggregate,
        drops_headers: DropsHeaders => fetch_returns_what_was_recorded,
        hides_unreadable: HidesUnreadable => an_unreadable_row_is_returned_as_such,
        fails_on_unreadable: FailsOnUnreadable => an_unreadable_row_is_returned_as_such,
        accepts_stale_epochs: AcceptsStaleEpochs => a_stale_epoch_settles_nothing,
        all_or_nothing: AllOrNothing => one_stale_lease_does_not_hold_up_the_others,
        loses_settlements: LosesSettlements => published_messages_are_not_fetched_again,
        forgets_attempts: ForgetsAttempts => a_failed_message_stays_pending_with_an_attempt_more,
        counts_changed_rows: CountsChangedRows => settling_again_changes_nothing,
        refuses_odd_errors: RefusesOddErrors => a_long_error_text_can_be_settled,
        never_halts: NeverHalts => a_halted_aggregate_waits_and_others_flow,
        always_halts: AlwaysHalts => a_parked_message_without_halt_lets_its_aggregate_flow,
        hides_parked: HidesParked => backlog_counts_what_waits_and_what_was_given_up,
        lists_parked_backwards: ListsParkedBackwards => parked_messages_are_listed_oldest_first,
        retry_does_nothing: RetryDoesNothing => retry_makes_a_parked_message_pending_again,
        retry_keeps_halt: RetryKeepsHalt => retry_releases_a_halted_aggregate,
        retries_anything: RetriesAnything => retry_of_what_is_not_parked_does_nothing,
        skip_does_nothing: SkipDoesNothing => skip_releases_a_halted_aggregate,
        skips_anything: SkipsAnything => skip_of_what_is_not_parked_does_nothing,
    ]);
}

mod wrong_writers {
    use super::*;

    noticed!(store, WriterMistake, MemoryStoreFixture::new(), WrongWriter::new, [
        commits_rolled_back: CommitsRolledBack => a_rollback_leaves_no_trace_and_no_hole,
        leaves_holes: LeavesHoles => a_rollback_leaves_no_trace_and_no_hole,
        leaves_holes_under_load: LeavesHoles => concurrent_writers_leave_no_hole,
        ignores_dedup_keys: IgnoresDedupKeys => a_deduplication_key_is_refused_twice,
        numbers_everything: NumbersEverything => unsequenced_messages_take_no_number,
        reverses_batches: ReversesBatches => a_large_batch_keeps_its_order,
        hides_refusals: HidesRefusals => an_event_that_cannot_be_stored_is_refused,
    ]);
}

mod wrong_publishers {
    use super::*;

    fn wrong(mistake: PublisherMistake) -> MemoryPublisherFixture<WrongPublisher> {
        MemoryPublisherFixture::wrapping(|inner| WrongPublisher::new(inner, mistake))
    }

    noticed!(publisher, PublisherMistake, MemoryPublisherFixture::new(), wrong, [
        confirms_without_storing: ConfirmsWithoutStoring => a_confirmed_message_is_stored,
        ignores_message_id: IgnoresMessageId => the_same_id_is_stored_once,
        ignores_message_id_at_once: IgnoresMessageId => concurrent_copies_are_stored_once,
        hides_duplicates: HidesDuplicates => the_same_id_is_stored_once,
        deduplicates_by_content: DeduplicatesByContent => equal_messages_with_different_ids_are_both_stored,
        permanent_on_outage: PermanentOnOutage => an_outage_condemns_no_message,
        transient_on_oversize: TransientOnOversize => an_oversize_payload_is_permanent,
        drops_headers: DropsHeaders => every_field_survives,
        rewrites_payload: RewritesPayload => payloads_of_all_sizes_survive,
        ignores_subject: IgnoresSubject => a_fixed_subject_is_used,
        cuts_aggregate_id: CutsAggregateId => odd_aggregate_ids_survive,
        reports_wrong_position: ReportsWrongPosition => a_confirmed_message_is_stored,
        mixes_up_receipts: ReportsWrongPosition => concurrent_publishes_are_all_stored,
        stores_late: StoresLate => awaited_publishes_keep_their_order,
    ]);
}

mod wrong_sources {
    use super::*;

    fn wrong(mistake: SourceMistake) -> MemorySourceFixture<WrongSource> {
        MemorySourceFixture::wrapping(|inner| WrongSource::new(inner, mistake))
    }

    noticed!(source, SourceMistake, MemorySourceFixture::new(), wrong, [
        never_redelivers: NeverRedelivers => unacknowledged_messages_come_again,
        acks_on_delivery: AcksOnDelivery => unacknowledged_messages_come_again,
        loses_acks: LosesAcks => acknowledged_messages_do_not_come_again,
        loses_position: LosesPosition => a_consumer_goes_on_where_it_stopped,
        skips_what_was_there: SkipsWhatWasThere => wanted_messages_arrive_in_order,
        only_first_type: OnlyFirstType => wanted_messages_arrive_in_order,
        does_not_share: DoesNotShare => subscriptions_of_one_consumer_share,
        shares_across_names: SharesAcrossNames => each_consumer_gets_everything,
        ignores_in_flight_max: IgnoresInFlightMax => what_is_in_flight_is_bounded,
        ignores_retry_delay: IgnoresRetryDelay => a_retry_comes_after_its_delay,
        one_at_a_time: OneAtATime => a_retry_does_not_hold_up_others,
        hoards_other_types: HoardsOtherTypes => other_types_do_not_block,
        forgets_progress: ForgetsProgress => progress_postpones_redelivery,
        forgets_count: ForgetsCount => unacknowledged_messages_come_again,
        reports_no_backlog: ReportsNoBacklog => the_backlog_counts_down,
        loses_dropped_waits: LosesDroppedWaits => a_dropped_wait_loses_nothing,
    ]);
}

/// The sources of the suites: file by file what promises and what the macros run.
const SUITES: &[&str] = &[
    include_str!("../../src/testing/conformance/publisher.rs"),
    include_str!("../../src/testing/conformance/source.rs"),
    include_str!("../../src/testing/conformance/store/mod.rs"),
    include_str!("../../src/testing/conformance/store/admin.rs"),
    include_str!("../../src/testing/conformance/store/fetch.rs"),
    include_str!("../../src/testing/conformance/store/lease.rs"),
    include_str!("../../src/testing/conformance/store/record.rs"),
    include_str!("../../src/testing/conformance/store/settle.rs"),
];

fn lines<'a>(texts: &[&'a str], name: impl Fn(&'a str) -> Option<&'a str>) -> BTreeSet<&'a str> {
    texts
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(name)
        .collect()
}

#[test]
fn every_promise_is_run_and_has_a_mistake_that_breaks_it() {
    let promises = lines(SUITES, |line| {
        line.strip_prefix("pub async fn ")?.split('<').next()
    });
    let run = lines(SUITES, |line| {
        line.strip_prefix("            ")?
            .strip_suffix(',')
            .filter(|name| !name.contains(' '))
    });
    let run: BTreeSet<_> = run.intersection(&promises).copied().collect();
    assert_eq!(run, promises, "a promise is missing in its macro");
    let broken = lines(&[include_str!("conformance.rs")], |line| {
        line.split(" => ").nth(1)?.strip_suffix(',')
    });
    let untested: Vec<_> = promises.difference(&broken).collect();
    assert_eq!(
        untested,
        Vec::<&&str>::new(),
        "no mistake shows that these promises are checked"
    );
}
