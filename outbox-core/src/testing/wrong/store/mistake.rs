//! The list of mistakes of stores.

/// The mistake of a [`WrongStore`](super::WrongStore).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreMistake {
    /// Warns about a healthy store.
    AlwaysComplains,
    /// Counts relays that fell silent.
    AnnouncesForEver,
    /// Keeps reporting the first fitness that a relay announced.
    KeepsTheFirstFitness,
    /// Keeps the leases of a relay that has left.
    LeavesWithoutGivingBack,
    /// Grants partitions that somebody owns.
    GrantsOwnedLeases,
    /// Grants more partitions than asked for.
    IgnoresMax,
    /// Grants partitions again under the epoch they had before.
    ReusesEpochs,
    /// Grants nothing until the holder gives something back.
    LeasesForEver,
    /// Renews whatever it is asked to.
    RenewsBlindly,
    /// Keeps released partitions until they run out.
    ForgetsReleases,
    /// Frees released partitions, whoever owns them now.
    ReleasesForOthers,
    /// Remembers a cursor and fetches what comes after it, so that late commits are skipped.
    FetchesByCursor,
    /// Picks rows in no particular order, as `SKIP LOCKED` on rows does.
    FetchesOutOfOrder,
    /// Hands out messages that are already published.
    FetchesPublished,
    /// Hands out messages of all partitions.
    IgnoresPartitions,
    /// Hands out more than asked for.
    IgnoresLimit,
    /// Hands out as many bytes as there are.
    IgnoresBytes,
    /// Hands out messages again that the relay has in flight.
    IgnoresRowsInFlight,
    /// Leaves the application's headers behind.
    DropsHeaders,
    /// Leaves unreadable rows out, so that nobody hears of them.
    HidesUnreadable,
    /// Fails the fetch because of one unreadable row.
    FailsOnUnreadable,
    /// Compares aggregate ids as a case-insensitive collation does.
    FoldsCase,
    /// Hands out messages of blocked aggregates.
    HandsOutBlocked,
    /// Scans on behind rows that have to wait until it finds something due.
    LooksPastItsLimit,
    /// Does not set waiting messages aside, so that each fetch meets them again.
    ForgetsWhatWaits,
    /// Sets messages aside although nothing blocks their aggregate any more.
    SetsAsideBlindly,
    /// Blocks for no time.
    IgnoresBackoff,
    /// Blocks for an hour at least.
    BlocksTooLong,
    /// Does not prolong a block.
    KeepsTheFirstBlock,
    /// Hands out blocked messages in no particular order.
    FetchesWaitingOutOfOrder,
    /// Hands out more blocked messages than asked for.
    IgnoresWaitingBounds,
    /// Hands out messages of aggregates that the relay has enough of.
    IgnoresExclusions,
    /// Hands out blocked messages by the name of their aggregate.
    StarvesLateNames,
    /// Never removes a block.
    BlocksForEver,
    /// Blocks unsequenced messages with their aggregate.
    BlocksUnsequenced,
    /// Blocks the aggregate of an unsequenced message that failed.
    UnsequencedBlocks,
    /// Takes each failure for the message's own fault.
    CountsEveryFailure,
    /// Does not count failures.
    ForgetsFailures,
    /// Sets a halted aggregate free because another message of it has to wait.
    BlockEndsHalt,
    /// Hands out the messages behind a delayed one.
    OvertakesDelayed,
    /// Hands out waiting messages while an older one is still pending.
    OvertakesPending,
    /// Forgets delayed messages once it has set them aside.
    ForgetsDelayed,
    /// Heeds only the delay that began a block.
    HeedsOneDelay,
    /// Lets a block last until the latest of the times that it is made for.
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
    /// Fails on error texts that a column cannot hold, as PostgreSQL does on NUL.
    RefusesOddErrors,
    /// Halts no aggregate.
    NeverHalts,
    /// Makes refused messages dead while their aggregate is halted, and remembers only the first halt.
    KeepsTheFirstHalt,
    /// Halts the aggregate of every dead letter.
    AlwaysHalts,
    /// Hands out no more messages of a block once one of them became a dead letter.
    DeadLettersEndTheDrain,
    /// Reports a retry, and does nothing.
    RetryDoesNothing,
    /// Makes the message pending and leaves its aggregate halted.
    RetryKeepsHalt,
    /// Puts a retried message behind those that waited for it.
    RetryGoesLast,
    /// Ends the back-off of an aggregate when one of its messages is retried.
    RetryEndsBackoff,
    /// Retries everything, whatever was selected.
    RetriesEverything,
    /// Reports messages as retried that were not dead.
    RetriesAnything,
    /// Reports a skip, and does nothing.
    SkipDoesNothing,
    /// Leaves the block of a skipped message behind.
    SkipKeepsBlock,
    /// Reports messages as skipped that were not dead.
    SkipsAnything,
    /// Leaves dead letters out of the backlog.
    HidesDeadLetters,
    /// Leaves waiting messages out of the backlog.
    HidesWaiting,
    /// Lists messages newest first.
    ListsBackwards,
    /// Lists messages of all event types.
    IgnoresEventType,
    /// Lists blocked aggregates by name.
    ListsBlockedByName,
    /// Reports a resume, and does nothing.
    ResumeDoesNothing,
    /// Resumes an aggregate that waits for an operator's decision.
    ResumeEndsHalts,
    /// Purges messages however young they are.
    PurgeIgnoresAge,
    /// Purges by the time of recording alone.
    PurgesByRecording,
    /// Says after each purge that there is more.
    PurgeNeverEnds,
    /// Starts from the beginning with each page of published messages.
    RepeatsPages,
    /// Copies all messages that can be copied, not only the selected ones.
    ReplaysEverything,
    /// Gives a replayed copy the id of the message it copies.
    ReplayKeepsMessageId,
    /// Takes a replayed copy for a new event.
    ReplayForgetsEvent,
}
