//! The mistakes of logs.

/// The mistake of a [`WrongLog`](super::WrongLog).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogMistake {
    /// The preflight always fails.
    AlwaysComplains,
    /// Delivers each message twice.
    RepeatsMessages,
    /// Delivers messages with a used attempt.
    MakesUpRows,
    /// Ends a transaction after each message.
    SplitsTransactions,
    /// Delivers rolled-back messages.
    GivesRolledBack,
    /// Reports no position until there is a message.
    SaysNothingAtFirst,
    /// Reports its position only at the beginning.
    OverlooksOthers,
    /// Reports an end of the log that a reading never reaches.
    WrittenIsAhead,
    /// Loses an event if the wait is dropped.
    LosesDroppedWaits,
    /// Reports that nothing is retained.
    KeepsNothing,
    /// Each opening takes the log from the current reader.
    SharesReading,
    /// A dropped reader keeps the log.
    KeepsReading,
    /// Stores no position.
    ForgetsPosition,
    /// Stores a position after undecided messages.
    ConfirmsWhatWasRead,
    /// Each reading starts at the end of the log.
    StartsAtTheEnd,
    /// A replaced reader can still confirm.
    ConfirmsForOthers,
    /// Waits forever after the connection breaks.
    NeverEnds,
    /// The table does not adopt the messages of a lost log.
    AdoptsNothingThatWasLost,
    /// A dropped opening keeps the log.
    LeavesHalfOpened,
    /// A dropped confirmation breaks the reading.
    BreaksWhenDropped,
    /// A look finds no aggregates ahead of the log.
    PutsNothingFirst,
    /// A look finds neither a block nor a pending message.
    SeesNoExceptions,
    /// A look does not report a flood.
    IsNeverFlooded,
    /// A look returns the time of another clock.
    TellsAnotherTime,
    /// A look reports every message as logged.
    TakesAllForLogged,
    /// Adoptions are confirmed and not stored.
    AdoptsInVain,
    /// An adoption makes dead letters pending again.
    RevivesDeadLetters,
    /// An adoption takes messages before the stored position.
    AdoptsWhatIsPassed,
    /// An adoption returns only newly adopted messages.
    TellsOnlyWhatItAdopted,
    /// An adoption never returns deleted messages.
    WaitsForTheDeleted,
    /// Treats an invisible message as deleted.
    TakesUnseenForGone,
    /// A new reading does not report earlier adoptions.
    ForgetsAdoptions,
    /// A dropped adoption is applied partially.
    AdoptsOneByOne,
    /// Purges messages after the stored position.
    PurgesWhatIsNotPassed,
    /// Purges messages of any age.
    PurgesByNoAge,
}
