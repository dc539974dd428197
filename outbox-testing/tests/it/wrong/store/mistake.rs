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
    /// After the clock is set back, the store grants leases of owners that may still publish.
    TakesLeasesAhead,
    /// After the clock is set back, the store keeps leases until their original end.
    KeepsLeasesAhead,
    LeavesWithoutGivingBack,
    GrantsOwnedLeases,
    /// The store grants more partitions than requested.
    IgnoresMax,
    ReusesEpochs,
    /// The store grants a partition only after its owner releases the lease.
    LeasesForEver,
    RenewsBlindly,
    ForgetsReleases,
    ReleasesForOthers,
    /// A fetch skips messages that commit late.
    FetchesByCursor,
    /// A fetch returns unlocked rows out of order, as `SKIP LOCKED` does.
    FetchesOutOfOrder,
    OrdersByRowId,
    /// A fetch treats rows fetched by a former owner as in flight.
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
    /// A fetch scans beyond its limit for due rows.
    LooksPastItsLimit,
    /// The store ignores the verdict `Waits`.
    ForgetsWhatWaits,
    /// The store applies the verdict `Waits` although the aggregate of the message is not blocked.
    SetsAsideBlindly,
    IgnoresBackoff,
    /// A block lasts at least an hour.
    BlocksTooLong,
    KeepsTheFirstBlock,
    FetchesWaitingOutOfOrder,
    IgnoresWaitingBounds,
    IgnoresExclusions,
    /// A fetch returns waiting messages in the order of aggregate names.
    StarvesLateNames,
    BlocksForEver,
    BlocksUnsequenced,
    UnsequencedBlocks,
    CountsEveryFailure,
    ForgetsFailures,
    /// Another blocked message of the aggregate ends the halt.
    BlockEndsHalt,
    OvertakesDelayed,
    /// A fetch returns waiting messages while an older message is pending.
    OvertakesPending,
    ForgetsDelayed,
    HeedsOneDelay,
    /// A block ends at the latest of its messages' times.
    WaitsForTheLatest,
    DelayedUnsequencedBlocks,
    AcceptsStaleEpochs,
    /// If one lease is stale, the store rejects the settlements of all leases.
    AllOrNothing,
    LosesSettlements,
    KeepsEverything,
    KeepsNothing,
    /// The store reports a repeated settlement as a lost lease.
    CountsChangedRows,
    SettlesDeadLetters,
    SettlesByRowId,
    /// The store rejects error texts with NUL, as PostgreSQL does.
    RefusesOddErrors,
    NeverHalts,
    /// The store dead-letters messages of a halted aggregate, and keeps only the first halt.
    KeepsTheFirstHalt,
    AlwaysHalts,
    /// After a dead letter, a fetch returns no more messages of the block.
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
    /// The purge uses the recording time only.
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
    /// The reported last sequence is too low by one.
    CountsHeadsShort,
    /// A lookup returns any block instead of the aggregate's block.
    FindsOtherBlocks,
    ListsNoUnhealthyRelays,
    ListsFormerOwners,
    ForgetsFormerOwners,
    HoldsForEver,
    /// A pause holds messages only for a moment.
    HoldsForAMoment,
    HoldsWithoutAPause,
    FoldsPausedTypes,
    PausesForEver,
    PauseEndsHalt,
    PauseForgetsDelayed,
    WritesNothingDown,
    BeginsAnew,
    CopiesCopies,
    /// Each operation that selects a message counts the message.
    CountsForAll,
    IgnoresTheBound,
    /// The store records the resume of an aggregate without a block.
    WritesDownNothing,
    PausesWithoutAWord,
    PausesOnceMore,
    /// The store never finishes an operation with external effects.
    FinishDoesNothing,
    ListsOldOperationsFirst,
    NamesNoMessages,
}
