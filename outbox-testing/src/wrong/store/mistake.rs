//! The planted mistakes of stores.

/// The mistake of a [`WrongStore`](super::WrongStore).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreMistake {
    /// Warns about a healthy store.
    AlwaysComplains,
    /// Counts relays whose announcement has run out.
    AnnouncesForEver,
    /// Keeps reporting the first fitness that a relay announced.
    KeepsTheFirstFitness,
    /// Does not store the destination of a relay.
    ForgetsDestinations,
    /// Does not store what keeps a relay from its work.
    ForgetsTroubles,
    /// Lists no relay whose announcement has expired.
    ListsNoExpiredRelays,
    /// Grants leases that were granted before the clock was set back, while their owner may still publish.
    TakesLeasesAhead,
    /// Waits until the clock has caught up with leases that were granted before it was set back.
    KeepsLeasesAhead,
    /// Keeps the leases of a relay that has left.
    LeavesWithoutGivingBack,
    /// Grants partitions that another relay owns.
    GrantsOwnedLeases,
    /// Grants more partitions than requested.
    IgnoresMax,
    /// Grants a partition again under its old epoch.
    ReusesEpochs,
    /// Grants nothing until the owner releases something.
    LeasesForEver,
    /// Renews every lease, owned or not.
    RenewsBlindly,
    /// Keeps released partitions until their leases run out.
    ForgetsReleases,
    /// Frees partitions on a stale release, whoever owns them now.
    ReleasesForOthers,
    /// Remembers a cursor and fetches only rows behind it, so that late commits are skipped.
    FetchesByCursor,
    /// Fetches rows in no particular order, as `SKIP LOCKED` on rows does.
    FetchesOutOfOrder,
    /// Orders the messages of an aggregate by row id.
    OrdersByRowId,
    /// Counts what a former owner of the partition has fetched as in flight.
    RemembersFormerOwners,
    /// Puts replayed copies behind messages that were recorded after the replay.
    PutsCopiesLast,
    /// Returns messages that are already published.
    FetchesPublished,
    /// Returns messages of all partitions.
    IgnoresPartitions,
    /// Returns more rows than the limit.
    IgnoresLimit,
    /// Returns more bytes than the bound.
    IgnoresBytes,
    /// Returns messages that the relay has in flight.
    IgnoresRowsInFlight,
    /// Drops the application's headers.
    DropsHeaders,
    /// Leaves unreadable rows out, so that nobody notices them.
    HidesUnreadable,
    /// Fails the fetch because of one unreadable row.
    FailsOnUnreadable,
    /// Compares aggregate ids as a case-insensitive collation does.
    FoldsCase,
    /// Returns messages of blocked aggregates.
    HandsOutBlocked,
    /// Scans beyond its limit, past rows that have to wait, until it finds a due one.
    LooksPastItsLimit,
    /// Does not set messages aside, so that each fetch meets them again.
    ForgetsWhatWaits,
    /// Sets messages aside although nothing blocks their aggregate any more.
    SetsAsideBlindly,
    /// Blocks with no delay.
    IgnoresBackoff,
    /// Blocks for at least an hour.
    BlocksTooLong,
    /// Does not prolong an existing block.
    KeepsTheFirstBlock,
    /// Returns waiting messages in no particular order.
    FetchesWaitingOutOfOrder,
    /// Returns more waiting messages than the bounds allow.
    IgnoresWaitingBounds,
    /// Returns messages of aggregates that the relay has excluded.
    IgnoresExclusions,
    /// Returns waiting messages in the order of their aggregates' names.
    StarvesLateNames,
    /// Never removes a block.
    BlocksForEver,
    /// Blocks unsequenced messages with their aggregate.
    BlocksUnsequenced,
    /// Blocks the aggregate of an unsequenced message that failed.
    UnsequencedBlocks,
    /// Treats each failure as the message's own fault.
    CountsEveryFailure,
    /// Does not count failures.
    ForgetsFailures,
    /// Lifts a halt because another message of the aggregate has to wait.
    BlockEndsHalt,
    /// Returns the messages behind a delayed one.
    OvertakesDelayed,
    /// Returns waiting messages while an older one is still pending.
    OvertakesPending,
    /// Forgets delayed messages once it has set them aside.
    ForgetsDelayed,
    /// Considers only the delay that began a block.
    HeedsOneDelay,
    /// Lets a block last until the latest of its messages' times.
    WaitsForTheLatest,
    /// Blocks the aggregate of a delayed unsequenced message.
    DelayedUnsequencedBlocks,
    /// Records verdicts under any epoch.
    AcceptsStaleEpochs,
    /// Refuses all verdicts if one lease is stale.
    AllOrNothing,
    /// Answers verdicts with `Ok` and forgets them.
    LosesSettlements,
    /// Keeps published messages that were to be deleted.
    KeepsEverything,
    /// Deletes published messages that were to be kept.
    KeepsNothing,
    /// Counts rows that changed, so that repeating a verdict looks like a lost lease.
    CountsChangedRows,
    /// Records verdicts on messages that were dead letters long ago.
    SettlesDeadLetters,
    /// Finds the message of a verdict by its row id alone.
    SettlesByRowId,
    /// Fails on error texts that a column cannot store, as PostgreSQL does on NUL.
    RefusesOddErrors,
    /// Halts no aggregate.
    NeverHalts,
    /// Makes refused messages dead while their aggregate is halted, and remembers only the first halt.
    KeepsTheFirstHalt,
    /// Halts the aggregate of every dead letter.
    AlwaysHalts,
    /// Returns no more messages of a block once one of them became a dead letter.
    DeadLettersEndTheDrain,
    /// Reports a retry without doing anything.
    RetryDoesNothing,
    /// Makes the message pending and leaves its aggregate halted.
    RetryKeepsHalt,
    /// Puts a retried message behind those that waited for it.
    RetryGoesLast,
    /// Ends the back-off of an aggregate when one of its messages is retried.
    RetryEndsBackoff,
    /// Retries all dead letters, not only the selected ones.
    RetriesEverything,
    /// Reports messages as retried that were not dead.
    RetriesAnything,
    /// Reports a skip without doing anything.
    SkipDoesNothing,
    /// Leaves the block of a skipped message behind.
    SkipKeepsBlock,
    /// Reports messages as skipped that were not dead.
    SkipsAnything,
    /// Leaves dead letters out of the backlog.
    HidesDeadLetters,
    /// Leaves waiting messages out of the backlog.
    HidesWaiting,
    /// Leaves failed messages out of the age of the backlog.
    HidesAgeOfFailed,
    /// Lists messages newest first.
    ListsBackwards,
    /// Begins each page with the oldest messages.
    PagesOldestFirst,
    /// Lists messages of all event types.
    IgnoresEventType,
    /// Lists blocked aggregates by name.
    ListsBlockedByName,
    /// Reports a resume without doing anything.
    ResumeDoesNothing,
    /// Resumes a halted aggregate.
    ResumeEndsHalts,
    /// Purges messages of any age.
    PurgeIgnoresAge,
    /// Purges by the time of recording alone.
    PurgesByRecording,
    /// Reports after each purge that there is more.
    PurgeNeverEnds,
    /// Starts each page of published messages from the beginning.
    RepeatsPages,
    /// Reads only published messages of a span.
    LeavesOutUnpublished,
    /// Looks through all published messages, however many it may look at.
    SearchesWithoutBound,
    /// Copies all messages that can be copied, not only the selected ones.
    ReplaysEverything,
    /// Gives a replayed copy the id of the message it copies.
    ReplayKeepsMessageId,
    /// Treats a replayed copy as a new event.
    ReplayForgetsEvent,
    /// Frees the deduplication keys of messages that are deleted as soon as they are published.
    FreesKeysEarly,
    /// Never frees deduplication keys.
    PurgeKeepsKeys,
    /// Forgets aggregates together with what is not published.
    ForgetsUnpublished,
    /// Forgets an aggregate, and keeps its deduplication keys.
    ForgetKeepsKeys,
    /// Forgets aggregates that have recorded a moment ago.
    ForgetsBusyAggregates,
    /// Finds messages without their payloads.
    FindsNoPayload,
    /// Finds delayed messages as if they were not delayed.
    FindsNoDelay,
    /// Says that the last message of an aggregate has the number before.
    CountsHeadsShort,
    /// Finds any block instead of that of the aggregate.
    FindsOtherBlocks,
    /// Does not list relays that say that they cannot work.
    ListsNoAilingRelays,
    /// Lists the relay whose lease has run out as the owner of the partition.
    ListsFormerOwners,
    /// Does not say whose lease has run out.
    ForgetsFormerOwners,
    /// Removes a pause that has ended, and leaves held what it held.
    HoldsForEver,
    /// Holds what is paused for a moment, so that relays meet it again and again.
    HoldsForAMoment,
    /// Holds what a relay takes for paused, although no pause stands.
    HoldsWithoutAPause,
    /// Compares paused types as a case-insensitive collation does.
    FoldsPausedTypes,
    /// Lets no pause end by itself.
    PausesForEver,
    /// Lets a halted aggregate go on when a pause ends.
    PauseEndsHalt,
    /// Forgets delayed messages when a pause ends.
    PauseForgetsDelayed,
    /// Changes messages and does not write the operation down.
    WritesNothingDown,
    /// Lets an operation begin anew each time.
    BeginsAnew,
    /// Lets a replay that goes on copy its own copies.
    CopiesCopies,
    /// Counts a message for each operation that selects it.
    CountsForAll,
    /// Lets an operation take more than its bound.
    IgnoresTheBound,
    /// Writes down that an aggregate was resumed which was not blocked.
    WritesDownNothing,
    /// Pauses and ends pauses, and writes no operation down.
    PausesWithoutAWord,
    /// Pauses once more when an operation is repeated.
    PausesOnceMore,
    /// Never ends an operation whose effects are elsewhere.
    FinishDoesNothing,
    /// Lists the first operation first.
    ListsOldOperationsFirst,
    /// Does not know the messages of an operation.
    NamesNoMessages,
}
