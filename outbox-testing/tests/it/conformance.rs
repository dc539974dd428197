//! The in-memory implementations keep every promise, and every planted mistake breaks its promise.

use std::collections::BTreeSet;
use std::path::Path;

use outbox_testing::conformance::{dedup_store, log, publisher, store, stream_log, subscriber};
use outbox_testing::{
    MemoryBroker, MemoryDedupStore, MemoryLog, MemoryPublisher, MemoryStore, MemorySubscriber,
};

use crate::fixtures::{MemoryBrokerFixture, MemoryDedupStoreFixture, MemoryLogFixture, MemoryStoreFixture};
use crate::wrong::{
    DedupStoreMistake, LogMistake, PublisherMistake, StoreMistake, StreamLogMistake, SubscriberMistake,
    WriterMistake, WrongDedupStore, WrongLog, WrongPublisher, WrongStore, WrongStreamLog, WrongSubscriber,
};

fn right_publisher() -> MemoryBrokerFixture<MemoryPublisher> {
    MemoryBrokerFixture::of(MemoryBroker::publisher)
}

fn right_subscriber() -> MemoryBrokerFixture<MemorySubscriber> {
    MemoryBrokerFixture::of(MemoryBroker::subscriber)
}

fn right_stream_log() -> MemoryBrokerFixture<MemoryBroker> {
    MemoryBrokerFixture::of(MemoryBroker::clone)
}

fn right_log() -> MemoryLogFixture<MemoryLog> {
    MemoryLogFixture::of(MemoryStore::log)
}

fn right_dedup_store() -> MemoryDedupStoreFixture<MemoryDedupStore> {
    MemoryDedupStoreFixture(MemoryDedupStore::new())
}

mod memory_store {
    use super::MemoryStoreFixture;

    outbox_testing::store_conformance!(
        #[tokio::test(start_paused = true)]
        Some(MemoryStoreFixture::new())
    );
}

mod memory_publisher {
    outbox_testing::publisher_conformance!(
        #[tokio::test(start_paused = true)]
        Some(super::right_publisher())
    );
}

mod memory_subscriber {
    outbox_testing::subscriber_conformance!(
        #[tokio::test(start_paused = true)]
        Some(super::right_subscriber())
    );
}

mod memory_stream_log {
    outbox_testing::stream_log_conformance!(
        #[tokio::test(start_paused = true)]
        Some(super::right_stream_log())
    );
}

mod memory_log {
    outbox_testing::log_conformance!(
        #[tokio::test(start_paused = true)]
        Some(super::right_log())
    );
}

mod memory_dedup_store {
    outbox_testing::dedup_store_conformance!(
        #[tokio::test(start_paused = true)]
        Some(super::right_dedup_store())
    );
}

/// The promise fails on `$wrong(mistake)` and holds on `$right`.
macro_rules! noticed {
    ($suite:ident, $mistakes:ident, $right:expr, $wrong:expr, [$($test:ident: $mistake:ident => $promise:ident,)*]) => {
    $(
        #[tokio::test(start_paused = true)]
        async fn $test() {
            $suite::$promise(&$right).await;
            let wrong = $wrong($mistakes::$mistake);
            // The future of a conformance test need not be `Send`.
            let local = tokio::task::LocalSet::new();
            let promise = local.spawn_local(async move { $suite::$promise(&wrong).await });
            let outcome = local.run_until(promise).await;
            let noticed = outcome.is_err_and(|error| error.is_panic());
            assert!(noticed, "`{}` did not detect `{}`", stringify!($promise), stringify!($mistake));
        }
    )*

        #[allow(dead_code, unreachable_patterns, reason = "this code only has to compile")]
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
        always_complains: AlwaysComplains => a_healthy_store_passes_its_preflight,
        announces_for_ever: AnnouncesForEver => relays_are_counted_until_their_announcement_expires,
        keeps_the_first_health: KeepsTheFirstHealth => relays_are_counted_by_their_last_announcement,
        forgets_destinations: ForgetsDestinations => relays_of_another_destination_are_counted,
        forgets_troubles: ForgetsTroubles => registrations_are_listed,
        lists_no_expired_relays: ListsNoExpiredRelays => expired_relays_are_listed,
        takes_leases_ahead: TakesLeasesAhead => leases_ahead_of_the_clock_are_shortened,
        keeps_leases_ahead: KeepsLeasesAhead => leases_ahead_of_the_clock_are_shortened,
        leaves_without_giving_back: LeavesWithoutGivingBack => leaving_releases_leases_and_announcement,
        grants_owned_leases: GrantsOwnedLeases => leases_are_exclusive,
        ignores_max: IgnoresMax => acquire_takes_at_most_the_requested_number,
        reuses_epochs: ReusesEpochs => each_acquisition_raises_the_epoch,
        leases_for_ever: LeasesForEver => each_acquisition_raises_the_epoch,
        renews_blindly: RenewsBlindly => leases_are_renewed_only_while_owned,
        forgets_releases: ForgetsReleases => released_partitions_are_free_immediately,
        settles_what_was_released: ForgetsReleases => a_released_lease_settles_nothing,
        releases_for_others: ReleasesForOthers => a_stale_release_frees_nothing,
        fetches_by_cursor: FetchesByCursor => a_late_commit_is_not_skipped,
        fetches_out_of_order: FetchesOutOfOrder => a_limited_fetch_continues_where_it_stopped,
        fetches_published: FetchesPublished => a_published_message_is_kept_or_deleted,
        ignores_partitions: IgnoresPartitions => only_leased_partitions_are_fetched,
        ignores_partitions_of_blocks: IgnoresPartitions => only_leased_partitions_return_waiting_messages,
        ignores_limit: IgnoresLimit => a_limited_fetch_continues_where_it_stopped,
        ignores_bytes: IgnoresBytes => a_byte_bound_ends_a_fetch,
        ignores_rows_in_flight: IgnoresRowsInFlight => rows_in_flight_are_skipped,
        ignores_waiting_rows_in_flight: IgnoresRowsInFlight => waiting_rows_in_flight_are_skipped,
        drops_headers: DropsHeaders => fetch_returns_recorded_messages,
        hides_unreadable: HidesUnreadable => an_unreadable_row_is_returned_as_an_error,
        fails_on_unreadable: FailsOnUnreadable => an_unreadable_row_is_returned_as_an_error,
        folds_case: FoldsCase => odd_aggregate_ids_stay_distinct,
        hands_out_blocked: HandsOutBlocked => messages_of_a_blocked_aggregate_wait_alone,
        looks_past_its_limit: LooksPastItsLimit => a_fetch_examines_at_most_its_limit,
        forgets_what_waits: ForgetsWhatWaits => a_fetch_examines_at_most_its_limit,
        sets_aside_blindly: SetsAsideBlindly => setting_aside_without_a_block_changes_nothing,
        loses_what_was_set_aside_late: SetsAsideBlindly => a_message_recorded_while_a_block_drains_keeps_its_place,
        ignores_backoff: IgnoresBackoff => resume_ends_a_block,
        blocks_too_long: BlocksTooLong => a_message_that_fails_again_blocks_again,
        keeps_the_first_block: KeepsTheFirstBlock => a_message_that_fails_again_blocks_again,
        fetches_waiting_out_of_order: FetchesWaitingOutOfOrder => an_ended_block_returns_its_messages_in_order,
        ignores_waiting_bounds: IgnoresWaitingBounds => a_fetch_of_waiting_messages_keeps_its_bounds,
        ignores_exclusions: IgnoresExclusions => excluded_aggregates_are_skipped,
        starves_late_names: StarvesLateNames => the_block_that_ended_first_comes_first,
        blocks_for_ever: BlocksForEver => a_block_ends_with_its_last_waiting_message,
        blocks_unsequenced: BlocksUnsequenced => unsequenced_messages_neither_block_nor_halt,
        unsequenced_blocks: UnsequencedBlocks => an_unsequenced_failure_waits_alone,
        counts_every_failure: CountsEveryFailure => failures_and_attempts_are_counted_separately,
        forgets_failures: ForgetsFailures => failures_and_attempts_are_counted_separately,
        keeps_the_first_halt: KeepsTheFirstHalt => a_message_rejected_during_a_halt_waits_in_order,
        block_ends_halt: BlockEndsHalt => a_halted_aggregate_stays_halted,
        overtakes_delayed: OvertakesDelayed => a_delayed_message_holds_back_its_aggregate,
        overtakes_pending: OvertakesPending => waiting_messages_do_not_overtake_pending_messages,
        forgets_delayed: ForgetsDelayed => several_delayed_messages_keep_their_order,
        heeds_one_delay: HeedsOneDelay => several_delayed_messages_keep_their_order,
        waits_for_the_latest: WaitsForTheLatest => an_older_message_ignores_the_delay_of_a_later_message,
        heeds_only_the_block: HeedsOneDelay => a_delayed_message_behind_a_block_waits_for_its_own_time,
        delayed_unsequenced_blocks: DelayedUnsequencedBlocks => a_delayed_unsequenced_message_waits_alone,
        accepts_stale_epochs: AcceptsStaleEpochs => a_stale_epoch_settles_nothing,
        all_or_nothing: AllOrNothing => a_stale_lease_does_not_affect_other_leases,
        loses_settlements: LosesSettlements => a_published_message_is_kept_or_deleted,
        keeps_everything: KeepsEverything => a_published_message_is_kept_or_deleted,
        keeps_nothing: KeepsNothing => a_published_message_is_kept_or_deleted,
        counts_changed_rows: CountsChangedRows => settling_again_changes_nothing,
        puts_copies_last: PutsCopiesLast => later_messages_stay_behind_replayed_copies,
        orders_by_row_id: OrdersByRowId => a_row_id_counter_set_back_keeps_the_order,
        remembers_former_owners: RemembersFormerOwners => messages_in_flight_of_a_former_owner_come_first,
        orders_waiting_by_row_id: OrdersByRowId => a_block_orders_by_sequence,
        settles_by_row_id: SettlesByRowId => verdicts_need_the_message_id,
        settles_dead_letters: SettlesDeadLetters => a_late_verdict_changes_nothing,
        refuses_odd_errors: RefusesOddErrors => a_long_error_text_can_be_settled,
        never_halts: NeverHalts => skip_releases_a_halted_aggregate,
        always_halts: AlwaysHalts => a_dead_letter_without_halt_lets_a_block_drain,
        dead_letters_end_the_drain: DeadLettersEndTheDrain => a_dead_letter_without_halt_lets_a_block_drain,
        retry_does_nothing: RetryDoesNothing => retry_releases_a_halted_aggregate,
        retry_keeps_halt: RetryKeepsHalt => retry_releases_a_halted_aggregate,
        retry_goes_last: RetryGoesLast => a_retried_message_comes_before_its_successors,
        retry_ends_backoff: RetryEndsBackoff => a_dead_letter_without_halt_can_be_retried_under_a_block,
        retries_everything: RetriesEverything => retry_and_skip_take_a_selection,
        retries_anything: RetriesAnything => retry_and_skip_change_dead_letters_only,
        skip_does_nothing: SkipDoesNothing => skip_releases_a_halted_aggregate,
        skip_keeps_block: SkipKeepsBlock => skip_of_the_only_message_removes_the_block,
        skips_anything: SkipsAnything => retry_and_skip_change_dead_letters_only,
        hides_dead_letters: HidesDeadLetters => backlog_counts_waiting_messages_and_dead_letters,
        hides_waiting: HidesWaiting => backlog_counts_waiting_messages_and_dead_letters,
        pages_oldest_first: PagesOldestFirst => pages_begin_with_the_newest_messages,
        hides_age_of_failed: HidesAgeOfFailed => backlog_age_covers_failed_messages,
        lists_backwards: ListsBackwards => messages_are_listed_oldest_first,
        ignores_event_type: IgnoresEventType => a_selection_narrows_the_list,
        lists_blocked_by_name: ListsBlockedByName => blocked_aggregates_are_listed_halted_first,
        resume_does_nothing: ResumeDoesNothing => resume_ends_a_block,
        resume_ends_halts: ResumeEndsHalts => resume_does_not_end_a_halt,
        purge_ignores_age: PurgeIgnoresAge => purge_continues_until_it_ends,
        purges_by_recording: PurgesByRecording => a_recently_published_message_is_not_purged,
        purge_never_ends: PurgeNeverEnds => purge_continues_until_it_ends,
        repeats_pages: RepeatsPages => published_messages_are_read_in_pages,
        replays_everything: ReplaysEverything => replay_takes_a_selection,
        replay_keeps_message_id: ReplayKeepsMessageId => replay_places_copies_after_all_recorded_messages,
        replay_forgets_event: ReplayForgetsEvent => a_replayed_copy_is_an_ordinary_message,
        frees_keys_early: FreesKeysEarly => a_deduplication_key_outlives_its_message,
        purge_keeps_keys: PurgeKeepsKeys => a_deduplication_key_outlives_its_message,
        forgets_unpublished: ForgetsUnpublished => unpublished_messages_are_not_forgotten,
        forget_keeps_keys: ForgetKeepsKeys => nothing_is_left_of_a_forgotten_aggregate,
        forgets_busy_aggregates: ForgetsBusyAggregates => only_idle_aggregates_are_forgotten,
        finds_no_payload: FindsNoPayload => a_message_is_found_with_its_payload,
        leaves_out_unpublished: LeavesOutUnpublished => recorded_messages_are_read_in_pages,
        searches_without_bound: SearchesWithoutBound => a_search_among_published_messages_is_bounded,
        finds_no_delay: FindsNoDelay => a_delayed_message_keeps_its_time_after_a_pause,
        counts_heads_short: CountsHeadsShort => the_head_of_an_aggregate_is_found,
        finds_other_blocks: FindsOtherBlocks => blocked_aggregates_are_listed_halted_first,
        lists_no_unhealthy_relays: ListsNoUnhealthyRelays => registrations_are_listed,
        lists_former_owners: ListsFormerOwners => partitions_are_listed_with_their_owners,
        forgets_former_owners: ForgetsFormerOwners => partitions_are_listed_with_their_owners,
        holds_for_ever: HoldsForEver => paused_messages_wait_until_the_pause_is_finished,
        holds_for_a_moment: HoldsForAMoment => paused_messages_wait_until_the_pause_is_finished,
        holds_without_a_pause: HoldsWithoutAPause => an_inactive_pause_holds_no_message,
        folds_paused_types: FoldsPausedTypes => pauses_are_listed_and_replaced,
        pauses_for_ever: PausesForEver => a_pause_with_a_duration_expires,
        pause_ends_halt: PauseEndsHalt => a_halted_aggregate_stays_halted_under_a_pause,
        pause_forgets_delayed: PauseForgetsDelayed => a_delayed_message_keeps_its_time_after_a_pause,
        writes_nothing_down: WritesNothingDown => an_operation_is_recorded_with_its_changes,
        begins_anew: BeginsAnew => an_operation_continues_at_its_position,
        begins_anew_for_each: BeginsAnew => two_callers_of_an_operation_take_each_message_once,
        copies_copies: CopiesCopies => an_operation_skips_its_own_messages,
        counts_for_all: CountsForAll => two_operations_count_each_message_once,
        ignores_the_bound: IgnoresTheBound => a_bounded_operation_takes_the_first_messages,
        writes_down_nothing: WritesDownNothing => resume_and_forget_are_recorded,
        finish_does_nothing: FinishDoesNothing => an_operation_with_external_effects_is_recorded,
        lists_old_operations_first: ListsOldOperationsFirst => operations_are_listed_newest_first,
        names_no_messages: NamesNoMessages => the_messages_of_an_operation_are_found,
        pauses_without_a_word: PausesWithoutAWord => pause_and_unpause_are_recorded,
        pauses_once_more: PausesOnceMore => a_repeated_pause_changes_nothing,
    ]);
}

mod wrong_writers {
    use super::*;

    noticed!(store, WriterMistake, MemoryStoreFixture::new(), MemoryStoreFixture::with_writer, [
        commits_rolled_back: CommitsRolledBack => a_rollback_leaves_no_trace_and_no_hole,
        leaves_holes: LeavesHoles => a_rollback_leaves_no_trace_and_no_hole,
        leaves_holes_under_load: LeavesHoles => concurrent_writers_leave_no_hole,
        ignores_dedup_keys: IgnoresDedupKeys => a_repeated_deduplication_key_is_rejected,
        numbers_everything: NumbersEverything => unsequenced_messages_use_no_sequence,
        reverses_batches: ReversesBatches => a_large_batch_keeps_its_order,
        hides_refusals: HidesRefusals => an_invalid_event_is_rejected,
    ]);
}

mod wrong_publishers {
    use super::*;

    fn wrong(mistake: PublisherMistake) -> MemoryBrokerFixture<WrongPublisher> {
        MemoryBrokerFixture::of(|broker| WrongPublisher::new(broker.publisher(), mistake))
    }

    noticed!(publisher, PublisherMistake, right_publisher(), wrong, [
        confirms_without_storing: ConfirmsWithoutStoring => a_confirmed_message_is_stored,
        ignores_message_id: IgnoresMessageId => the_same_id_is_stored_once,
        ignores_message_id_at_once: IgnoresMessageId => concurrent_copies_are_stored_once,
        hides_duplicates: HidesDuplicates => the_same_id_is_stored_once,
        deduplicates_by_content: DeduplicatesByContent => concurrent_publishes_are_all_stored,
        always_complains: AlwaysComplains => a_healthy_broker_passes_its_preflight,
        stays_closed: StaysClosed => publishing_continues_after_abandon,
        transient_on_outage: TransientOnOutage => an_outage_dead_letters_no_message,
        permanent_on_outage: PermanentOnOutage => an_outage_dead_letters_no_message,
        transient_on_oversize: TransientOnOversize => an_oversize_payload_is_permanent,
        drops_headers: DropsHeaders => every_field_survives,
        rewrites_payload: RewritesPayload => payloads_of_all_sizes_survive,
        ignores_subject: IgnoresSubject => a_fixed_subject_is_used,
        cuts_aggregate_id: CutsAggregateId => odd_aggregate_ids_survive,
        reports_wrong_stream_sequence: ReportsWrongStreamSequence => a_confirmed_message_is_stored,
        mixes_up_receipts: ReportsWrongStreamSequence => concurrent_publishes_are_all_stored,
        stores_late: StoresLate => awaited_publishes_keep_their_order,
    ]);
}

mod wrong_stream_logs {
    use super::*;

    fn wrong(mistake: StreamLogMistake) -> MemoryBrokerFixture<WrongStreamLog> {
        MemoryBrokerFixture::of(|broker| WrongStreamLog::new(broker.clone(), mistake))
    }

    noticed!(stream_log, StreamLogMistake, right_stream_log(), wrong, [
        lists_events: ListsEvents => published_messages_are_listed,
        reads_one_batch: ReadsOneBatch => published_messages_are_listed,
        ignores_start: IgnoresStart => a_start_time_skips_older_messages,
        fails_on_foreign: FailsOnForeign => foreign_messages_are_not_listed,
        locates_events: LocatesEvents => a_message_on_the_stream_is_located,
        shows_no_copies: ShowsNoCopies => messages_are_read_in_stream_order,
        shows_by_aggregate: ShowsByAggregate => messages_are_read_in_stream_order,
        counts_no_foreign: CountsNoForeign => messages_are_read_in_stream_order,
        shows_older: ShowsOlder => reading_starts_at_a_time_and_ends_at_the_callers_request,
        shows_on: ShowsOn => reading_starts_at_a_time_and_ends_at_the_callers_request,
    ]);
}

mod wrong_logs {
    use super::*;

    fn wrong(mistake: LogMistake) -> MemoryLogFixture<WrongLog> {
        MemoryLogFixture::of(|store| WrongLog::new(store.clone(), mistake))
    }

    noticed!(log, LogMistake, right_log(), wrong, [
        always_complains: AlwaysComplains => a_healthy_log_passes_its_preflight,
        repeats_messages: RepeatsMessages => a_reading_returns_every_message_once,
        makes_up_rows: MakesUpRows => a_log_message_equals_its_table_row,
        splits_transactions: SplitsTransactions => transactions_come_whole_and_in_commit_order,
        gives_rolled_back: GivesRolledBack => the_log_never_returns_rolled_back_messages,
        says_nothing_at_first: SaysNothingAtFirst => an_idle_reading_reports_its_position,
        overlooks_others: OverlooksOthers => unrelated_writes_advance_a_reading,
        loses_dropped_waits: LosesDroppedWaits => a_dropped_wait_for_the_log_loses_nothing,
        keeps_nothing: KeepsNothing => undecided_messages_increase_the_retained_log,
        shares_reading: SharesReading => one_reader_at_a_time,
        keeps_reading: KeepsReading => closed_reader_lets_another_relay_read,
        forgets_position: ForgetsPosition => a_reading_starts_after_the_stored_position,
        confirms_for_others: ConfirmsForOthers => a_replaced_reader_cannot_confirm,
        never_ends: NeverEnds => an_interrupted_reading_ends,
        deletes_what_was_lost: DeletesWhatWasLost => a_lost_log_loses_no_message,
        leaves_half_opened: LeavesHalfOpened => a_dropped_opening_leaves_nothing,
        breaks_when_dropped: BreaksWhenDropped => a_dropped_confirmation_can_be_repeated,
        puts_nothing_first: PutsNothingFirst => a_look_returns_aggregates_that_the_table_serves_first,
        sees_no_exceptions: SeesNoExceptions => a_look_reports_whether_there_are_exceptions,
        is_never_flooded: IsNeverFlooded => a_look_reports_a_flood_of_pending_messages,
        tells_another_time: TellsAnotherTime => a_look_returns_the_database_clock,
        takes_all_for_logged: TakesAllForLogged => a_look_returns_the_logged_messages,
        adopts_in_vain: AdoptsInVain => adopted_messages_come_from_the_table,
        revives_dead_letters: RevivesDeadLetters => only_logged_messages_are_adopted,
        adopts_what_is_passed: AdoptsWhatIsPassed => messages_before_the_position_are_not_adopted,
        tells_only_what_it_adopted: TellsOnlyWhatItAdopted => an_adoption_returns_the_messages_of_the_table,
        waits_for_the_deleted: WaitsForTheDeleted => an_adoption_returns_deleted_messages,
        takes_unseen_for_gone: TakesUnseenForGone => an_invisible_message_does_not_count_as_deleted,
        adopts_one_by_one: AdoptsOneByOne => a_dropped_adoption_is_atomic,
        purges_what_is_not_passed: PurgesWhatIsNotPassed => purge_keeps_messages_after_the_stored_position,
        forgets_adoptions: ForgetsAdoptions => a_new_reading_returns_the_end_of_adopted_messages,
        purges_by_no_age: PurgesByNoAge => logged_messages_are_kept_for_their_retention,
    ]);
}

mod wrong_subscribers {
    use super::*;

    fn wrong(mistake: SubscriberMistake) -> MemoryBrokerFixture<WrongSubscriber> {
        MemoryBrokerFixture::of(|broker| WrongSubscriber::new(broker.subscriber(), mistake))
    }

    noticed!(subscriber, SubscriberMistake, right_subscriber(), wrong, [
        never_redelivers: NeverRedelivers => unacknowledged_messages_come_again,
        acks_on_delivery: AcksOnDelivery => unacknowledged_messages_come_again,
        loses_acks: LosesAcks => a_restarted_consumer_continues_at_its_position,
        loses_progress: LosesProgress => a_restarted_consumer_continues_at_its_position,
        skips_what_was_there: SkipsWhatWasThere => wanted_messages_arrive_in_order,
        only_first_type: OnlyFirstType => wanted_messages_arrive_in_order,
        does_not_share: DoesNotShare => subscriptions_of_one_consumer_share,
        shares_across_names: SharesAcrossNames => each_consumer_gets_everything,
        ignores_in_flight_max: IgnoresInFlightMax => in_flight_messages_are_bounded,
        ignores_retry_delay: IgnoresRetryDelay => a_retry_comes_after_its_delay,
        one_at_a_time: OneAtATime => a_retry_does_not_delay_other_messages,
        hoards_other_types: HoardsOtherTypes => other_types_do_not_block,
        forgets_progress: ForgetsProgress => progress_postpones_redelivery,
        forgets_count: ForgetsCount => unacknowledged_messages_come_again,
        reports_no_backlog: ReportsNoBacklog => the_backlog_counts_down,
        loses_dropped_waits: LosesDroppedWaits => a_dropped_wait_loses_nothing,
        keeps_what_it_fetched: KeepsWhatItFetched => released_prefetched_messages_come_immediately,
        does_not_stop: DoesNotStop => a_stopped_subscription_receives_nothing,
        flushes_nothing: FlushesNothing => flushed_answers_have_arrived,
        acks_other_types: AcksOtherTypes => messages_requested_by_another_version_are_reported,
        forgets_other_versions: ForgetsOtherVersions => messages_requested_by_another_version_are_reported,
        asks_for_everything: AsksForEverything => unrequested_messages_are_reported,
        overlooks_predecessors: OverlooksPredecessors => only_predecessors_are_found_whatever_their_type,
        finds_predecessors_everywhere: FindsPredecessorsEverywhere => only_predecessors_are_found_whatever_their_type,
        ignores_start: IgnoresStart => a_new_consumer_starts_at_the_requested_position,
        starts_anew: StartsAnew => an_existing_consumer_keeps_its_position,
        looks_before_the_start: LooksBeforeTheStart => messages_before_the_start_are_no_predecessors,
        forgets_siblings: ForgetsSiblings => siblings_with_a_fixed_subject_arrive,
        ignores_selections: IgnoresSelections => a_selected_aggregate_type_arrives_whole,
        narrows_everything: NarrowsEverything => a_selection_of_everything_receives_everything,
        forgets_the_selections_of_others: ForgetsOtherVersions => messages_requested_by_a_selection_are_reported,
        believes_headers: BelievesHeaders => a_message_belongs_on_its_own_subjects_only,
        believes_nothing: BelievesNothing => a_message_belongs_on_its_own_subjects_only,
        remembers_facts: RemembersFacts => facts_describe_the_stream,
        sees_nothing_waiting: SeesNothingWaiting => a_standing_counts_the_backlog,
        counts_delivered_ones: CountsDeliveredOnes => a_standing_counts_the_backlog,
        tells_the_youngest: TellsTheYoungest => a_standing_counts_the_backlog,
        hides_the_bound: HidesTheBound => a_standing_counts_the_backlog,
        sees_nobody: SeesNobody => a_standing_reports_active_receivers,
    ]);
}

mod wrong_dedup_stores {
    use super::*;

    fn wrong(mistake: DedupStoreMistake) -> MemoryDedupStoreFixture<WrongDedupStore> {
        MemoryDedupStoreFixture(WrongDedupStore::new(mistake))
    }

    noticed!(dedup_store, DedupStoreMistake, right_dedup_store(), wrong, [
        always_complains: AlwaysComplains => a_healthy_store_passes_its_preflight,
        shares_claims: SharesClaims => a_claim_is_exclusive,
        forgets_consumer: ForgetsConsumer => a_claim_is_exclusive,
        looks_then_claims: LooksThenClaims => concurrent_claims_have_one_winner,
        forgets_done: ForgetsDone => a_completed_key_stays_completed,
        keeps_for_the_lease: KeepsForTheLease => a_completed_key_stays_completed,
        completes_once: CompletesOnce => completing_again_changes_nothing,
        forgets_release: ForgetsRelease => a_released_claim_is_free,
        releases_done: ReleasesDone => releasing_a_completed_key_changes_nothing,
        never_expires: NeverExpires => a_crash_frees_the_claim_after_its_lease,
        expires_at_once: ExpiresAtOnce => a_crash_frees_the_claim_after_its_lease,
        completes_for_anybody: CompletesForAnybody => a_lost_claim_cannot_be_completed,
        releases_for_anybody: ReleasesForAnybody => a_lost_claim_cannot_be_released,
        refuses_late_completion: RefusesLateCompletion => an_expired_claim_without_a_successor_is_completed,
    ]);
}

fn suites(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder of the suites can be read");
    let paths = entries.map(|entry| entry.expect("the folder of the suites can be read").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => suites(&path),
            false => vec![std::fs::read_to_string(path).expect("a suite can be read")],
        })
        .collect()
}

fn lines<'a>(texts: &[&'a str], name: impl Fn(&'a str) -> Option<&'a str>) -> BTreeSet<&'a str> {
    texts
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(name)
        .collect()
}

#[test]
fn every_promise_runs_and_detects_a_planted_mistake() {
    let suites = suites(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance"));
    let suites: Vec<&str> = suites.iter().map(String::as_str).collect();
    let promises = lines(&suites, |line| {
        line.strip_prefix("pub async fn ")?.split('<').next()
    });
    let run = lines(&suites, |line| {
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
