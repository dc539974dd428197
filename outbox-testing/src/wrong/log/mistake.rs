//! The mistakes of logs.

/// The mistake of a [`WrongLog`](super::WrongLog).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogMistake {
    /// The preflight fails whatever it finds.
    AlwaysComplains,
    /// Gives each message twice.
    RepeatsMessages,
    /// Gives messages as if they had been tried before.
    MakesUpRows,
    /// Ends each transaction after each of its messages, so that the position can pass a transaction of which a message is undecided.
    SplitsTransactions,
    /// Gives what nobody committed.
    GivesRolledBack,
    /// Says nothing as long as there is nothing to give.
    SaysNothingAtFirst,
    /// Says where it is at the beginning only.
    OverlooksOthers,
    /// The end of the log is a place that a reading does not reach.
    WrittenIsAhead,
    /// An event is lost if the wait for it is dropped.
    LosesDroppedWaits,
    /// Says that it keeps nothing.
    KeepsNothing,
    /// Each opening takes the log away from the relay that reads.
    SharesReading,
    /// A reader that is gone keeps the log.
    KeepsReading,
    /// Stores no position.
    ForgetsPosition,
    /// Stores the position up to which it was read, whatever is decided.
    ConfirmsWhatWasRead,
    /// Each reading begins at the end of the log.
    StartsAtTheEnd,
    /// A reader may confirm after another reading has begun.
    ConfirmsForOthers,
    /// Waits for ever after the connection has broken.
    NeverEnds,
    /// The table does not adopt what a lost log has not given.
    AdoptsNothingThatWasLost,
    /// An opening that is dropped keeps the log.
    LeavesHalfOpened,
    /// A confirmation that is dropped breaks the reading.
    BreaksWhenDropped,
    /// A look finds no aggregate that the table comes first for.
    PutsNothingFirst,
    /// A look finds neither a block nor a pending message.
    SeesNoExceptions,
    /// A look does not tell that too many messages are pending.
    IsNeverFlooded,
    /// A look tells the time of another clock.
    TellsAnotherTime,
    /// A look takes each message for a logged one.
    TakesAllForLogged,
    /// Adoptions are answered and not stored.
    AdoptsInVain,
    /// An adoption makes dead letters pending again.
    RevivesDeadLetters,
    /// An adoption takes messages that the stored position has passed.
    AdoptsWhatIsPassed,
    /// An adoption tells only of messages that were logged.
    TellsOnlyWhatItAdopted,
    /// An adoption never tells of a message that was deleted.
    WaitsForTheDeleted,
    /// A message that cannot be seen yet is taken for a deleted one.
    TakesUnseenForGone,
    /// A new reading does not know that messages were adopted.
    ForgetsAdoptions,
    /// An adoption that is dropped is done in part.
    AdoptsOneByOne,
    /// Purges messages that would come again after a crash.
    PurgesWhatIsNotPassed,
    /// Purges messages however young they are.
    PurgesByNoAge,
}
