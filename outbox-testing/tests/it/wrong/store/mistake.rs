//! The mistakes of stores.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreMistake {
    /// The preflight always fails.
    AlwaysComplains,
    AnnouncesForEver,
    KeepsTheFirstHealth,
    ForgetsDestinations,
    ForgetsTroubles,
    ListsNoExpiredRelays,
    /// After the clock is set back, grants leases of owners that may still publish.
    TakesLeasesAhead,
    /// After the clock is set back, waits for the original end of leases.
    KeepsLeasesAhead,
    LeavesWithoutGivingBack,
    GrantsOwnedLeases,
    /// Grants more partitions than requested.
    IgnoresMax,
    ReusesEpochs,
    /// Grants nothing until the owner releases a lease.
    LeasesForEver,
    RenewsBlindly,
    ForgetsReleases,
    ReleasesForOthers,
    /// Skips late commits.
    FetchesByCursor,
    /// As `SKIP LOCKED` does.
    FetchesOutOfOrder,
    OrdersByRowId,
    /// Treats rows fetched by a former owner as in flight.
    RemembersFormerOwners,
    PutsCopiesLast,
    FetchesPublished,
    IgnoresPartitions,
    IgnoresLimit,
    IgnoresBytes,
    IgnoresRowsInFlight,
    DropsHeaders,
    HidesUnreadable,
    FailsOnUnreadable,
    FoldsCase,
    HandsOutBlocked,
    /// Scans beyond its limit for due rows.
    LooksPastItsLimit,
    /// Does not set messages aside.
    ForgetsWhatWaits,
    /// Sets messages aside without a block.
    SetsAsideBlindly,
    IgnoresBackoff,
    /// Blocks for at least an hour.
    BlocksTooLong,
    KeepsTheFirstBlock,
    FetchesWaitingOutOfOrder,
    IgnoresWaitingBounds,
    IgnoresExclusions,
    /// Returns waiting messages by aggregate name.
    StarvesLateNames,
    BlocksForEver,
    BlocksUnsequenced,
    UnsequencedBlocks,
    CountsEveryFailure,
    ForgetsFailures,
    /// Another blocked message of the aggregate lifts the halt.
    BlockEndsHalt,
    OvertakesDelayed,
    /// Returns waiting messages while an older one is pending.
    OvertakesPending,
    ForgetsDelayed,
    HeedsOneDelay,
    /// Ends a block at the latest of its messages' times.
    WaitsForTheLatest,
    DelayedUnsequencedBlocks,
    AcceptsStaleEpochs,
    /// Rejects all verdicts if one lease is stale.
    AllOrNothing,
    LosesSettlements,
    KeepsEverything,
    KeepsNothing,
    /// A repeated verdict looks like a lost lease.
    CountsChangedRows,
    SettlesDeadLetters,
    SettlesByRowId,
    /// Fails on error texts with NUL, as PostgreSQL does.
    RefusesOddErrors,
    NeverHalts,
    /// Dead-letters messages of a halted aggregate, and keeps only the first halt.
    KeepsTheFirstHalt,
    AlwaysHalts,
    /// Returns no more messages of a block after a dead letter.
    DeadLettersEndTheDrain,
    RetryDoesNothing,
    RetryKeepsHalt,
    RetryGoesLast,
    RetryEndsBackoff,
    RetriesEverything,
    RetriesAnything,
    SkipDoesNothing,
    SkipKeepsBlock,
    SkipsAnything,
    HidesDeadLetters,
    HidesWaiting,
    HidesAgeOfFailed,
    ListsBackwards,
    PagesOldestFirst,
    IgnoresEventType,
    ListsBlockedByName,
    ResumeDoesNothing,
    ResumeEndsHalts,
    PurgeIgnoresAge,
    /// Purges by recording time only.
    PurgesByRecording,
    PurgeNeverEnds,
    RepeatsPages,
    LeavesOutUnpublished,
    SearchesWithoutBound,
    ReplaysEverything,
    ReplayKeepsMessageId,
    ReplayForgetsEvent,
    FreesKeysEarly,
    PurgeKeepsKeys,
    ForgetsUnpublished,
    ForgetKeepsKeys,
    ForgetsBusyAggregates,
    FindsNoPayload,
    FindsNoDelay,
    /// A last sequence that is too low by one.
    CountsHeadsShort,
    /// Returns any block instead of the aggregate's.
    FindsOtherBlocks,
    ListsNoUnhealthyRelays,
    ListsFormerOwners,
    ForgetsFormerOwners,
    HoldsForEver,
    /// Holds paused messages only for a moment.
    HoldsForAMoment,
    HoldsWithoutAPause,
    FoldsPausedTypes,
    PausesForEver,
    PauseEndsHalt,
    PauseForgetsDelayed,
    WritesNothingDown,
    BeginsAnew,
    CopiesCopies,
    /// Counts a message for each operation that selects it.
    CountsForAll,
    IgnoresTheBound,
    /// Records the resume of an aggregate without a block.
    WritesDownNothing,
    PausesWithoutAWord,
    PausesOnceMore,
    /// Never finishes an operation with effects elsewhere.
    FinishDoesNothing,
    ListsOldOperationsFirst,
    NamesNoMessages,
}
