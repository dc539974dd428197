//! The mistakes of stores.

/// The mistake of a [`WrongStore`](super::WrongStore).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreMistake {
    /// The preflight always fails.
    AlwaysComplains,
    /// Counts relays after their announcement expires.
    AnnouncesForEver,
    /// Keeps reporting a relay's first fitness.
    KeepsTheFirstFitness,
    /// Does not store the destination of a relay.
    ForgetsDestinations,
    /// Does not store the trouble of a relay.
    ForgetsTroubles,
    /// Lists no expired relays.
    ListsNoExpiredRelays,
    /// After the clock is set back, grants leases of owners that may still publish.
    TakesLeasesAhead,
    /// After the clock is set back, waits for the original end of leases.
    KeepsLeasesAhead,
    /// Keeps the leases of a relay that left.
    LeavesWithoutGivingBack,
    /// Grants owned partitions.
    GrantsOwnedLeases,
    /// Grants more partitions than requested.
    IgnoresMax,
    /// Grants a partition again under its old epoch.
    ReusesEpochs,
    /// Grants nothing until the owner releases a lease.
    LeasesForEver,
    /// Renews every lease, owned or not.
    RenewsBlindly,
    /// Keeps released partitions until their leases expire.
    ForgetsReleases,
    /// Frees partitions on a stale release.
    ReleasesForOthers,
    /// Fetches only rows after a stored cursor, so that late commits are skipped.
    FetchesByCursor,
    /// Fetches rows in arbitrary order, as `SKIP LOCKED` does.
    FetchesOutOfOrder,
    /// Orders the messages of an aggregate by row id.
    OrdersByRowId,
    /// Treats rows fetched by a former owner as in flight.
    RemembersFormerOwners,
    /// Returns replayed copies after later messages.
    PutsCopiesLast,
    /// Fetches published messages.
    FetchesPublished,
    /// Fetches messages of all partitions.
    IgnoresPartitions,
    /// Exceeds the row limit.
    IgnoresLimit,
    /// Exceeds the byte bound.
    IgnoresBytes,
    /// Fetches messages in flight.
    IgnoresRowsInFlight,
    /// Drops the application's headers.
    DropsHeaders,
    /// Omits unreadable rows.
    HidesUnreadable,
    /// Fails the fetch if a row is unreadable.
    FailsOnUnreadable,
    /// Compares aggregate ids case-insensitively.
    FoldsCase,
    /// Fetches messages of blocked aggregates.
    HandsOutBlocked,
    /// Scans beyond its limit for due rows.
    LooksPastItsLimit,
    /// Does not set messages aside.
    ForgetsWhatWaits,
    /// Sets messages aside without a block.
    SetsAsideBlindly,
    /// Blocks without a delay.
    IgnoresBackoff,
    /// Blocks for at least an hour.
    BlocksTooLong,
    /// Does not prolong an existing block.
    KeepsTheFirstBlock,
    /// Returns waiting messages in arbitrary order.
    FetchesWaitingOutOfOrder,
    /// Exceeds the bounds on waiting messages.
    IgnoresWaitingBounds,
    /// Returns messages of excluded aggregates.
    IgnoresExclusions,
    /// Returns waiting messages by aggregate name.
    StarvesLateNames,
    /// Never removes a block.
    BlocksForEver,
    /// Blocks unsequenced messages with their aggregate.
    BlocksUnsequenced,
    /// Blocks the aggregate of a failed unsequenced message.
    UnsequencedBlocks,
    /// Counts every failure as an attempt.
    CountsEveryFailure,
    /// Does not count failures.
    ForgetsFailures,
    /// Lifts a halt when another message of the aggregate is blocked.
    BlockEndsHalt,
    /// Returns the messages after a delayed one.
    OvertakesDelayed,
    /// Returns waiting messages while an older one is pending.
    OvertakesPending,
    /// Loses delayed messages once they are set aside.
    ForgetsDelayed,
    /// Applies only the first delay of a block.
    HeedsOneDelay,
    /// Ends a block at the latest of its messages' times.
    WaitsForTheLatest,
    /// Blocks the aggregate of a delayed unsequenced message.
    DelayedUnsequencedBlocks,
    /// Records verdicts under any epoch.
    AcceptsStaleEpochs,
    /// Rejects all verdicts if one lease is stale.
    AllOrNothing,
    /// Accepts verdicts without recording them.
    LosesSettlements,
    /// Keeps published messages that should be deleted.
    KeepsEverything,
    /// Deletes published messages that should be kept.
    KeepsNothing,
    /// Counts changed rows only, so that a repeated verdict looks like a lost lease.
    CountsChangedRows,
    /// Records verdicts on dead letters.
    SettlesDeadLetters,
    /// Matches a verdict to its message by row id only.
    SettlesByRowId,
    /// Fails on error texts with NUL, as PostgreSQL does.
    RefusesOddErrors,
    /// Halts no aggregate.
    NeverHalts,
    /// Dead-letters messages of a halted aggregate, and keeps only the first halt.
    KeepsTheFirstHalt,
    /// Every dead letter halts its aggregate.
    AlwaysHalts,
    /// Returns no more messages of a block after a dead letter.
    DeadLettersEndTheDrain,
    /// Confirms a retry without effect.
    RetryDoesNothing,
    /// Retries the message and keeps the halt.
    RetryKeepsHalt,
    /// Puts a retried message after its successors.
    RetryGoesLast,
    /// A retry ends the back-off of its aggregate.
    RetryEndsBackoff,
    /// Retries all dead letters, not only the selected ones.
    RetriesEverything,
    /// Counts messages as retried that were not dead.
    RetriesAnything,
    /// Confirms a skip without effect.
    SkipDoesNothing,
    /// Keeps the block of a skipped message.
    SkipKeepsBlock,
    /// Counts messages as skipped that were not dead.
    SkipsAnything,
    /// Omits dead letters from the backlog.
    HidesDeadLetters,
    /// Omits waiting messages from the backlog.
    HidesWaiting,
    /// Omits failed messages from the backlog age.
    HidesAgeOfFailed,
    /// Lists messages newest first.
    ListsBackwards,
    /// Starts each page with the oldest messages.
    PagesOldestFirst,
    /// Lists messages of all event types.
    IgnoresEventType,
    /// Lists blocked aggregates by name.
    ListsBlockedByName,
    /// Confirms a resume without effect.
    ResumeDoesNothing,
    /// Resumes a halted aggregate.
    ResumeEndsHalts,
    /// Purges messages of any age.
    PurgeIgnoresAge,
    /// Purges by recording time only.
    PurgesByRecording,
    /// Never finishes a purge.
    PurgeNeverEnds,
    /// Starts each page of published messages at the beginning.
    RepeatsPages,
    /// Omits unpublished messages from a time span.
    LeavesOutUnpublished,
    /// Searches all published messages, beyond the limit.
    SearchesWithoutBound,
    /// Copies all messages, not only the selected ones.
    ReplaysEverything,
    /// Gives a copy the id of its original.
    ReplayKeepsMessageId,
    /// Gives a copy a new event id.
    ReplayForgetsEvent,
    /// Frees deduplication keys when their messages are deleted.
    FreesKeysEarly,
    /// Never frees deduplication keys.
    PurgeKeepsKeys,
    /// Forgets aggregates with unpublished messages.
    ForgetsUnpublished,
    /// Keeps the deduplication keys of a forgotten aggregate.
    ForgetKeepsKeys,
    /// Forgets active aggregates as idle.
    ForgetsBusyAggregates,
    /// Finds messages without their payloads.
    FindsNoPayload,
    /// Finds delayed messages without their delay.
    FindsNoDelay,
    /// Returns a last sequence that is too low by one.
    CountsHeadsShort,
    /// Returns any block instead of the aggregate's.
    FindsOtherBlocks,
    /// Omits ailing relays.
    ListsNoAilingRelays,
    /// Lists an expired lease's owner as the current owner.
    ListsFormerOwners,
    /// Omits the last owner of an expired lease.
    ForgetsFormerOwners,
    /// Removes an ended pause without releasing its messages.
    HoldsForEver,
    /// Holds paused messages only for a moment.
    HoldsForAMoment,
    /// Holds messages without an active pause.
    HoldsWithoutAPause,
    /// Compares paused types case-insensitively.
    FoldsPausedTypes,
    /// Ignores the end of a pause.
    PausesForEver,
    /// The end of a pause lifts halts.
    PauseEndsHalt,
    /// The end of a pause loses delayed messages.
    PauseForgetsDelayed,
    /// Changes messages without recording the operation.
    WritesNothingDown,
    /// Restarts an operation on each call.
    BeginsAnew,
    /// A continued replay copies its own copies.
    CopiesCopies,
    /// Counts a message for each operation that selects it.
    CountsForAll,
    /// Exceeds the limit of an operation.
    IgnoresTheBound,
    /// Records the resume of an aggregate without a block.
    WritesDownNothing,
    /// Records no pause operations.
    PausesWithoutAWord,
    /// Pauses again when an operation is repeated.
    PausesOnceMore,
    /// Never finishes an operation with effects elsewhere.
    FinishDoesNothing,
    /// Lists operations oldest first.
    ListsOldOperationsFirst,
    /// Returns no messages of an operation.
    NamesNoMessages,
}
