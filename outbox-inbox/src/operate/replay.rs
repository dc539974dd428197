//! Replays a consumer from a place in its stream.
//!
//! Order: the consumer is placed first, then its rows are forgotten. A crash in between leaves a consumer that is given again what it remembers, and nothing takes
//! effect twice. The consumer is paused all the time, so no process makes it anew or handles anything in between. Not here: waiting for what runs, see
//! [`super::quiescence`].

use outbox_core::{ConsumerAdmin, StartAt};

use super::plan::{Memory, Obstacle, ReplayPlan, Replayed, Strategies, Unremembered};
use super::{Consumers, ConsumersError, check_consumer_name, quiescence, rows};

impl<S: ConsumerAdmin> Consumers<S> {
    /// Says what a replay from a place in the stream would do. Reads all rows of the consumer, and changes nothing. The consumer need not be paused for it.
    ///
    /// # Errors
    ///
    /// [`ConsumersError::Name`], and the errors of broker and database.
    pub async fn plan_replay(
        &self,
        consumer: &str,
        start_at: StartAt,
        memory: Memory,
    ) -> Result<ReplayPlan, ConsumersError> {
        check_consumer_name(consumer)?;
        let inbox = self.sql();
        let obstacles = self.obstacles(consumer).await?;
        let foreseen = self.subscriber.foresee(consumer, start_at).await?;
        let at = foreseen.stream_sequence;
        let rows = rows::memory(&self.db, &inbox, consumer).await?;
        let strategies = Strategies::of(&self.router, consumer);
        let mut unremembered = Vec::new();
        if memory == Memory::Forget {
            unremembered.push(Unremembered::Everything);
        } else if !strategies.all_count {
            match (rows.since, start_at) {
                (Some(since), StartAt::Time(time)) if since <= time => {}
                (Some(since), _) => unremembered.push(Unremembered::HandledBefore(since)),
                (None, _) => unremembered.push(Unremembered::NoRows),
            }
        }
        unremembered.extend(strategies.without_rows());
        if foreseen.messages == 0 && memory == Memory::Keep {
            unremembered.clear();
        }
        Ok(ReplayPlan {
            consumer: consumer.to_owned(),
            memory,
            stream_sequence: at,
            messages: foreseen.messages,
            rows,
            dead_letters_again: rows::letters_from(&self.db, &inbox, consumer, at).await?,
            unremembered,
            obstacles,
        })
    }

    /// Replays a consumer as planned. It has to be paused, and stays so: resume it afterwards.
    ///
    /// It waits for processes that have just been paused and for handlers that run, half a minute at most. What a process of the consumer has in memory it
    /// handles after the pause, once: its message comes again as well.
    ///
    /// # Errors
    ///
    /// [`ConsumersError::Refused`] while processes of the consumer run; then nothing was done. After other errors, call it again with the same plan: what was done
    /// is done, and nothing has taken effect meanwhile. Do not resume the consumer before.
    ///
    /// # Cancellation
    ///
    /// As after an error.
    pub async fn replay(&self, plan: &ReplayPlan) -> Result<Replayed, ConsumersError> {
        let (consumer, inbox) = (plan.consumer.as_str(), self.sql());
        check_consumer_name(consumer)?;
        let obstacles = self.obstacles(consumer).await?;
        if !obstacles.is_empty() {
            return Err(ConsumersError::Refused(obstacles));
        }
        quiescence::until_quiet(self, consumer).await?;
        // A crash while this runs leaves the consumer as it was, as planned, or absent; a paused process does not make it anew.
        self.subscriber.place(consumer, plan.stream_sequence).await?;
        // A crash here leaves the consumer at its new place, and all of its memory.
        let replayed = match plan.memory {
            Memory::Keep => Replayed {
                messages: 0,
                sequences: 0,
            },
            Memory::Forget => rows::forget(&self.db, &inbox, consumer, plan.stream_sequence).await?,
        };
        tracing::warn!(
            consumer,
            stream_sequence = plan.stream_sequence,
            memory = ?plan.memory,
            ?replayed,
            "consumer is replayed"
        );
        Ok(replayed)
    }

    /// What can be seen at once.
    async fn obstacles(&self, consumer: &str) -> Result<Vec<Obstacle>, ConsumersError> {
        let pause = rows::pause(&self.db, &self.sql(), consumer).await?;
        let is_receiving = quiescence::is_receiving(self, consumer).await?;
        Ok(match pause {
            None => vec![Obstacle::NotPaused(consumer.to_owned())],
            Some(pause) if pause.is_noticed && is_receiving => {
                vec![Obstacle::Receiving(consumer.to_owned())]
            }
            Some(_) => Vec::new(),
        })
    }
}
