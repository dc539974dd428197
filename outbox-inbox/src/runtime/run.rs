//! One run of a handler: begin, claim, run, commit; or roll back.
//!
//! Invariants: the record that a message took effect and the handler's effects commit together; every transaction that is begun here ends, and so do its row
//! locks. It must run in tasks that nobody aborts, because a dropped `begin` poisons the pool. Not here: the consequences of an outcome, see
//! [`super::handle`].

use std::time::Duration;

use sea_orm::{DatabaseTransaction, DbErr};

use super::consumer::{Consumer, Stop};
use super::ready::Ready;
use super::routed::{Handling, RoutedMessage};
use crate::database::{Trouble, roll_back, trouble, trouble_in};
use crate::dead_letter::StoredDeadLetter;
use crate::dead_letter::retry::{self, Taken};
use crate::dedup::Claim;
use crate::dedup::claim::Claimant;
use crate::dedup::sequence::Gaps;
use crate::handler::{Effect, HandlerError, OnDuplicate, Recorded, Registration, Strategy, describe};
use crate::panics::guard;

/// The name of a handler's error in the report about a panic of that error.
pub(super) const ERROR: &str = "error of the handler";

/// How one run of a handler ended.
pub(super) enum RunOutcome {
    Handled {
        result: Option<Vec<u8>>,
    },
    /// It took effect before.
    Duplicate,
    /// It has no attempt left, and the last one reported no result.
    Exhausted {
        attempts: u32,
        error: String,
    },
    /// The attempt must be counted before the handler may run.
    CountFirst,
    /// Messages before it are missing.
    Early {
        expected: u64,
        failing: bool,
    },
    Failed {
        error: String,
        fatal: bool,
    },
    /// Its handler asked for another run after this time.
    Deferred {
        wait: Duration,
        error: String,
    },
    /// It took too long, which may be the database's fault.
    TimedOut(String),
    /// The database ended it; trying again at once may succeed.
    Interrupted(String),
    /// The database or the store did not let it begin.
    NotStarted(String),
    /// It did not run to its end, and there is nothing to record.
    Over(Handling),
}

impl RunOutcome {
    /// Another process runs the handler with this message.
    pub(super) fn runs_elsewhere(retry_after: Duration) -> Self {
        Self::Over(Handling::Later { retry_after })
    }
}

impl Consumer {
    /// Runs the handler as its strategy demands.
    pub(super) async fn run(&self, routed: &RoutedMessage, ready: &Ready<'_>, stop: &Stop) -> RunOutcome {
        match ready.handler.options.strategy {
            Strategy::External => self.run_externally(routed, ready, stop).await,
            Strategy::Natural if !runs_in_transaction(routed, ready.handler) => {
                self.run_without_transaction(routed, ready, stop).await
            }
            _ => self.run_in_transaction(routed, ready, stop).await,
        }
    }

    /// Begins, claims, runs the handler, commits.
    pub(super) async fn run_in_transaction(
        &self,
        routed: &RoutedMessage,
        ready: &Ready<'_>,
        stop: &Stop,
    ) -> RunOutcome {
        let Ready {
            handler,
            input,
            claimant,
        } = ready;
        // A crash here has done nothing: the message is delivered again.
        let _turn = self.shared.database.turn().await;
        let tx = match self.shared.database.begin().await {
            Ok(tx) => tx,
            Err(error) => return RunOutcome::NotStarted(describe(&error)),
        };
        // From here to the commit a crash rolls back row, effects and follow-up events together.
        match self.claim(&tx, routed, ready).await {
            None => {}
            Some(outcome) => {
                roll_back(tx).await;
                return outcome;
            }
        }
        let recorded = Recorded::default();
        let attempt = routed.memory.counted.unwrap_or(1);
        let messages = std::slice::from_ref(input);
        let call = self.call(handler, attempt, stop);
        let outcome = match call.inside(&tx, &recorded, messages).await {
            Ok(effect) => self.finish(&tx, handler, claimant, effect, &recorded).await,
            Err(outcome) => Err(outcome),
        };
        match outcome {
            Ok(result) => self.commit(tx, &recorded, result).await,
            Err(outcome) => {
                let connected = roll_back(tx).await;
                match outcome {
                    // The handler may have wrapped the error beyond recognition; that its connection is gone says enough, unless a save has closed
                    // it because the transaction had failed.
                    RunOutcome::Failed { error, fatal: false } if !connected && !recorded.is_lost() => {
                        RunOutcome::Interrupted(error)
                    }
                    outcome => outcome,
                }
            }
        }
    }

    /// Claims the message. `None` says that it is ours.
    pub(super) async fn claim(
        &self,
        tx: &DatabaseTransaction,
        routed: &RoutedMessage,
        ready: &Ready<'_>,
    ) -> Option<RunOutcome> {
        let (gaps, claimant) = (self.gaps(routed, Some(ready.handler)), &ready.claimant);
        if let Some(letter) = &routed.letter {
            return self.claim_letter(tx, letter, claimant, gaps).await;
        }
        let counted = routed.memory.counted.is_some();
        unclaimed(claimant.claim(tx, counted, gaps).await)
    }

    /// Claims the message of a dead letter. The commit deletes the dead letter.
    pub(super) async fn claim_letter(
        &self,
        tx: &DatabaseTransaction,
        letter: &StoredDeadLetter,
        claimant: &Claimant<'_>,
        gaps: Gaps,
    ) -> Option<RunOutcome> {
        let taken = retry::claim(tx, &self.shared.sql, self.name, letter, claimant.message);
        match taken.await {
            Ok(Taken::Mine { was_dead }) => unclaimed(claimant.claim_again(tx, was_dead, gaps).await),
            Ok(Taken::Handled) => Some(RunOutcome::Duplicate),
            // Its dead letter was handled or discarded elsewhere.
            Ok(Taken::Gone) => Some(RunOutcome::Over(Handling::Skipped)),
            Err(error) => unclaimed(Err(error)),
        }
    }

    /// Writes the result of the handler, and makes sure that the transaction and its claim still exist.
    pub(super) async fn finish(
        &self,
        tx: &DatabaseTransaction,
        handler: &Registration,
        claimant: &Claimant<'_>,
        effect: Effect,
        recorded: &Recorded,
    ) -> Result<Option<Vec<u8>>, RunOutcome> {
        recorded
            .integrity()
            .verify(tx)
            .await
            .map_err(|error| gone(&error))?;
        self.emit(tx, claimant.message, effect.events, recorded).await?;
        let follow_ups = recorded.ids();
        let reemits = handler.options.on_duplicate == OnDuplicate::Reemit && !follow_ups.is_empty();
        let keeps = handler.options.strategy.keeps_rows() && (effect.result.is_some() || reemits);
        let holds = if keeps {
            let follow_ups = if reemits { follow_ups.as_slice() } else { &[] };
            claimant.store(tx, effect.result.clone(), follow_ups).await
        } else if recorded.in_doubt() {
            claimant.still_holds(tx).await
        } else {
            // Every statement has succeeded, so the transaction still exists.
            Ok(true)
        };
        match holds {
            Ok(true) => Ok(effect.result),
            Ok(false) => Err(swallowed(None)),
            Err(error) => Err(gone(&error)),
        }
    }

    pub(super) async fn commit(
        &self,
        tx: DatabaseTransaction,
        recorded: &Recorded,
        result: Option<Vec<u8>>,
    ) -> RunOutcome {
        match tx.commit().await {
            Ok(()) => {
                // A crash from here to the acknowledgement: the message is delivered again and found handled.
                recorded.wake();
                RunOutcome::Handled { result }
            }
            // The outcome may be unknown. The next run finds out: if the row is there, it is a duplicate.
            Err(error) if trouble(&error) != Trouble::Statement => RunOutcome::Interrupted(describe(&error)),
            Err(error) => RunOutcome::Failed {
                error: describe(&error),
                fatal: false,
            },
        }
    }
}

/// The outcome of a claim that is not ours.
fn unclaimed(claim: Result<Claim, DbErr>) -> Option<RunOutcome> {
    match claim {
        Ok(Claim::Mine) => None,
        Ok(Claim::Done) => Some(RunOutcome::Duplicate),
        Ok(Claim::Dead) => Some(RunOutcome::Over(Handling::Duplicate)),
        Ok(Claim::CountFirst) => Some(RunOutcome::CountFirst),
        Ok(Claim::Early { expected, failing }) => Some(RunOutcome::Early { expected, failing }),
        Ok(Claim::Taken) => Some(RunOutcome::Failed {
            error: "another event took effect under its number, so its producer numbers anew: its database was restored, or a second service sends events of \
                    the aggregate under the same `source`; if it shall take effect, retry the dead letter"
                .to_owned(),
            fatal: true,
        }),
        Ok(Claim::Late) => Some(RunOutcome::Failed {
            error: "it came after the gap in its aggregate that it left was passed; retry the dead letter to let it take effect now"
                .to_owned(),
            fatal: true,
        }),
        Err(error) => Some(RunOutcome::NotStarted(describe(&error))),
    }
}

/// Whether the handler runs in a transaction of ours, which records whether the message took effect.
pub(super) fn runs_in_transaction(routed: &RoutedMessage, handler: &Registration) -> bool {
    let may_do_without = matches!(handler.options.strategy, Strategy::Natural | Strategy::External);
    !may_do_without || needs_transaction(handler) || routed.letter.is_some()
}

/// Whether a handler of a strategy without bookkeeping runs in a transaction all the same.
pub(super) fn needs_transaction(handler: &Registration) -> bool {
    handler.shape.transactional || handler.shape.emits
}

pub(super) fn outcome_of(error: &HandlerError) -> RunOutcome {
    let fatal = error.is_fatal();
    // Its text and its causes are the application's code.
    let described = guard(ERROR, || (describe(error.source()), trouble_in(error.source())));
    if let Some(wait) = error.waits() {
        let error = described.map_or_else(|panicked| panicked.to_string(), |(text, _)| text);
        return RunOutcome::Deferred { wait, error };
    }
    match described {
        // A fatal error is meant as such, whatever caused it.
        Ok((text, Some(Trouble::Conflict | Trouble::Unavailable))) if !fatal => RunOutcome::Interrupted(text),
        Ok((error, _)) => RunOutcome::Failed { error, fatal },
        Err(panicked) => RunOutcome::Failed {
            error: panicked.to_string(),
            fatal,
        },
    }
}

/// The outcome of a run whose transaction cannot be committed.
fn gone(error: &DbErr) -> RunOutcome {
    match trouble(error) {
        Trouble::Statement => swallowed(Some(error)),
        _ => RunOutcome::Interrupted(describe(error)),
    }
}

pub(super) fn swallowed(error: Option<&DbErr>) -> RunOutcome {
    let mut text = "handler returned Ok, but its transaction is gone: it went on after a database error; return such errors, or \
                    try what may fail inside `tx.begin()`"
        .to_owned();
    if let Some(error) = error {
        text = format!("{text}: {}", describe(error));
    }
    RunOutcome::Failed {
        error: text,
        fatal: false,
    }
}
