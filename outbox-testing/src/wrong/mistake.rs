//! The mistakes of logs.

/// The mistake of a [`WrongLog`](super::WrongLog).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogMistake {
    /// The preflight of the log always fails.
    AlwaysComplains,
    /// The reading delivers each message twice.
    RepeatsMessages,
    /// The reading delivers messages with a used attempt.
    MakesUpRows,
    /// The reading ends a transaction after each message.
    SplitsTransactions,
    /// The reading delivers rolled-back messages.
    GivesRolledBack,
    /// The reading reports no position until there is a message.
    SaysNothingAtFirst,
    /// The reading reports its position only at the beginning.
    OverlooksOthers,
    /// The log reports an end that a reading never reaches.
    WrittenIsAhead,
    /// The reading loses an event if the wait for the event is dropped.
    LosesDroppedWaits,
    /// The log reports that it retains no bytes.
    KeepsNothing,
    /// Each opening takes the log from the current reader.
    SharesReading,
    /// A dropped reader keeps the log.
    KeepsReading,
    /// The log stores no position.
    ForgetsPosition,
    /// The log stores a position after undecided messages.
    ConfirmsWhatWasRead,
    /// Each reading starts at the end of the log instead of the stored position.
    StartsAtTheEnd,
    /// A replaced reader can still confirm messages.
    ConfirmsForOthers,
    /// The reading waits forever after its connection breaks.
    NeverEnds,
    /// The table does not adopt the messages of a lost log.
    AdoptsNothingThatWasLost,
    /// A dropped opening keeps the log locked.
    LeavesHalfOpened,
    /// A dropped confirmation breaks the reading.
    BreaksWhenDropped,
    /// A table query finds no aggregates ahead of the log.
    PutsNothingFirst,
    /// A table query finds neither a block nor a pending message.
    SeesNoExceptions,
    /// A table query does not report a flood of pending messages.
    IsNeverFlooded,
    /// A table query returns the time of another clock.
    TellsAnotherTime,
    /// A table query reports every message as logged.
    TakesAllForLogged,
    /// Adoptions are confirmed but not stored.
    AdoptsInVain,
    /// An adoption makes dead letters pending again.
    RevivesDeadLetters,
    /// An adoption takes messages before the stored position.
    AdoptsWhatIsPassed,
    /// An adoption returns only newly adopted messages.
    TellsOnlyWhatItAdopted,
    /// An adoption never returns deleted messages.
    WaitsForTheDeleted,
    /// An adoption treats an invisible message as deleted.
    TakesUnseenForGone,
    /// A new reading does not report earlier adoptions.
    ForgetsAdoptions,
    /// A dropped adoption is applied partially.
    AdoptsOneByOne,
    /// The purge deletes messages after the stored position.
    PurgesWhatIsNotPassed,
    /// The purge deletes messages of any age.
    PurgesByNoAge,
}
