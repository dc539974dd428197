//! Gives a consumer another name, with its place in the stream and its rows.
//!
//! | step | a crash behind it leaves |
//! |---|---|
//! | 1 the new name is paused, for a reason that says from where | both names paused; the old one is whole |
//! | 2 the broker gets a consumer of the new name, at the first message that is not acknowledged | the same, and a consumer that nobody reads |
//! | 3 all rows move in one transaction; the pause of the old name says where to | the new name is whole, the old one has no rows and is paused |
//! | 4 the broker's consumer of the old name is removed | the same |
//! | 5 the new name goes on | |
//!
//! Each step does nothing if it was done, so the same call goes on after a crash. The old name stays paused for good: a process of the old program would
//! otherwise begin anew under it.

use outbox_core::ConsumerAdmin;

use super::plan::{Obstacle, RenamePlan, Renamed, Strategies, Unremembered};
use super::{Consumers, ConsumersError, check_consumer_name, rows};

/// Stored: the reason of the new name's pause, by which a later call knows that it goes on.
fn is_becoming(from: &str) -> String {
    format!("takes the place of `{from}`")
}

/// Stored: the reason of the old name's pause.
fn has_become(to: &str) -> String {
    format!("is `{to}` now")
}

impl<S: ConsumerAdmin> Consumers<S> {
    /// Says what another name for a consumer would do. Reads all rows of the consumer, and changes nothing. The consumer need not be paused for it.
    ///
    /// # Errors
    ///
    /// [`ConsumersError::Unknown`], [`ConsumersError::Name`], and the errors of broker and database.
    pub async fn plan_rename(&self, from: &str, to: &str) -> Result<RenamePlan, ConsumersError> {
        check_consumer_name(from)?;
        check_consumer_name(to)?;
        let inbox = self.sql();
        let pause = rows::pause(&self.db, &inbox, to).await?;
        let goes_on = pause
            .as_ref()
            .is_some_and(|pause| pause.reason == is_becoming(from));
        let mut obstacles = self.obstacles(from).await?;
        let made = self.subscriber.standing(to).await?;
        if !goes_on {
            let rows = rows::memory(&self.db, &inbox, to).await?;
            if from == to || made.is_some() || !rows.is_empty() {
                obstacles.push(Obstacle::NameTaken(to.to_owned()));
            } else if pause.is_some() {
                obstacles.push(Obstacle::NamePaused(to.to_owned()));
            }
        }
        let standing = self.subscriber.standing(from).await?;
        let (stream_sequence, messages) = match (standing, made) {
            (Some(old), _) => (Some(old.floor + 1), old.undelivered + old.unacknowledged),
            (None, Some(made)) if goes_on => (None, made.undelivered + made.unacknowledged),
            _ => return Err(ConsumersError::Unknown(from.to_owned())),
        };
        let mut strategies = Strategies::of(&self.router, from);
        if !strategies.are_known {
            // The program that renames may know the new name already.
            strategies = Strategies::of(&self.router, to);
        }
        let mut unremembered = strategies.without_rows();
        if !strategies.external.is_empty() {
            unremembered.push(Unremembered::External(strategies.external));
        }
        unremembered.push(Unremembered::StableKeys);
        Ok(RenamePlan {
            from: from.to_owned(),
            to: to.to_owned(),
            stream_sequence,
            messages,
            rows: rows::memory(&self.db, &inbox, from).await?,
            unremembered,
            goes_on,
            obstacles,
        })
    }

    /// Gives a consumer another name as planned. It has to be paused. Afterwards the new name goes on, and the old one stays paused for good: a process of the
    /// old program would otherwise begin anew under it. Start processes with the new name afterwards, or let them wait: the new name is paused meanwhile.
    ///
    /// It waits for processes that have just been paused and for handlers that run, half a minute at most. All rows move in one transaction. Processes of
    /// the old name have to be restarted: what they have in memory stays there unhandled, and comes to the new name.
    ///
    /// # Errors
    ///
    /// [`ConsumersError::Refused`] while processes of the consumer run, or if the new name is taken; then nothing was done. After other errors, call it again
    /// with the same plan or a new one: it goes on where it was interrupted, and nothing has taken effect meanwhile.
    ///
    /// # Cancellation
    ///
    /// As after an error.
    pub async fn rename(&self, plan: &RenamePlan) -> Result<Renamed, ConsumersError> {
        let (from, to, inbox) = (plan.from.as_str(), plan.to.as_str(), self.sql());
        // The names may have been taken since.
        let RenamePlan {
            obstacles, goes_on, ..
        } = self.plan_rename(from, to).await?;
        if !obstacles.is_empty() {
            return Err(ConsumersError::Refused(obstacles));
        }
        self.until_quiet(from).await?;
        rows::pause_for(&self.db, &inbox, to, &is_becoming(from)).await?;
        if let Some(old) = self.subscriber.standing(from).await? {
            // What is acknowledged above the floor comes again: the rows that move recognise it.
            let is_made = self.subscriber.copy(from, to, old.floor + 1).await?;
            if !is_made && !goes_on {
                // A process has begun under the new name a moment ago.
                rows::resume_from(&self.db, &inbox, to, &is_becoming(from)).await?;
                return Err(ConsumersError::Refused(vec![Obstacle::NameTaken(to.to_owned())]));
            }
        }
        let renamed = rows::rename(&self.db, &inbox, (from, to), &has_become(to)).await?;
        self.subscriber.remove(from).await?;
        rows::resume_from(&self.db, &inbox, to, &is_becoming(from)).await?;
        tracing::warn!(from, to, ?renamed, "consumer has another name");
        Ok(renamed)
    }
}
