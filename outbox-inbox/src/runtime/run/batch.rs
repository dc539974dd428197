//! Handles several messages in one transaction.
//!
//! Invariant: all effects commit, or each message is handled alone. A failing message costs the
//! other messages of its batch a second run and no attempt.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use sea_orm::DatabaseTransaction;

use super::attempt::Input;
use super::call::Call;
use super::transaction::{self, needs_transaction};
use crate::database::roll_back;
use crate::dedup::claim::claim_all;
use crate::dedup::sequence::Gaps;
use crate::dedup::{Outcome, Retry};
use crate::handler::{Effect, Recorded, Registration, Strategy};
use crate::hook::Handled;
use crate::runtime::consumer::{Consumer, Stop};
use crate::runtime::message::{Route, RoutedMessage};

struct Batch<'a> {
    call: Call<'a>,
    members: Vec<Input<'a>>,
    gaps: Vec<Gaps>,
    deferred: OnceLock<(Range<usize>, Duration)>,
}

/// Returns `None` if the messages must be handled one by one. Call it only with messages that have
/// not failed before.
pub(crate) async fn handle(
    consumer: &Consumer,
    messages: &[&RoutedMessage],
    handler: &Registration,
    stop: &Stop,
) -> Option<Vec<Option<Outcome>>> {
    if matches!(handler.options.strategy, Strategy::External) {
        return None;
    }
    let members: Option<Vec<_>> = messages
        .iter()
        .map(|routed| member(consumer, routed, handler))
        .collect();
    let batch = Batch {
        call: Call {
            consumer,
            handler,
            attempt: 1,
            stop,
        },
        members: members?,
        gaps: messages
            .iter()
            .map(|routed| consumer.gaps(routed, Some(handler)))
            .collect(),
        deferred: OnceLock::new(),
    };
    match batch.handle().await {
        None => batch.wait().await,
        Some(outcomes) => Some(outcomes.into_iter().map(Some).collect()),
    }
}

fn member<'a>(
    consumer: &'a Consumer,
    routed: &'a RoutedMessage,
    handler: &'a Registration,
) -> Option<Input<'a>> {
    let message = routed.message.as_ref().ok()?;
    let Route::Handler { upcast_to, .. } = &routed.route else {
        return None;
    };
    Input::new(consumer, message, &routed.source, handler, *upcast_to).ok()
}

impl Batch<'_> {
    async fn handle(&self) -> Option<Vec<Outcome>> {
        let recorded = Recorded::default();
        if matches!(self.call.handler.options.strategy, Strategy::Natural)
            && !needs_transaction(self.call.handler)
        {
            let all: Vec<_> = self.members.iter().collect();
            self.effects(&all, None, &recorded).await?;
            return Some(self.done(&vec![true; all.len()]));
        }
        let _turn = self.call.consumer.shared.database.turn().await;
        let tx = self.call.consumer.shared.database.begin().await.ok()?;
        match self.in_transaction(&tx, &recorded).await {
            Some(mine) => {
                // A failed commit may have succeeded. The messages run again one by one, and their
                // inbox rows reveal duplicates.
                transaction::commit(tx, &recorded).await.ok()?;
                Some(self.done(&mine))
            }
            None => {
                roll_back(tx).await;
                None
            }
        }
    }

    async fn in_transaction(&self, tx: &DatabaseTransaction, recorded: &Recorded) -> Option<Vec<bool>> {
        let mine = self.claim(tx).await?;
        let ours: Vec<_> = self
            .members
            .iter()
            .zip(&mine)
            .filter_map(|(member, mine)| mine.then_some(member))
            .collect();
        if ours.is_empty() {
            return Some(mine);
        }
        let effects = self.effects(&ours, Some(tx), recorded).await?;
        recorded.integrity().verify(tx).await.ok()?;
        for (Input { claimant, .. }, effect) in ours.iter().zip(effects) {
            let (consumer, events) = (self.call.consumer, effect.events);
            let emitted = transaction::emit(consumer, tx, claimant.message, events, recorded);
            emitted.await.ok()?;
        }
        let holds = !recorded.in_doubt() || ours[0].claimant.still_holds(tx).await.ok()?;
        holds.then_some(mine)
    }

    async fn claim(&self, tx: &DatabaseTransaction) -> Option<Vec<bool>> {
        let strategy = self.call.handler.options.strategy;
        if strategy.keeps_rows() {
            let claimants: Vec<_> = self.members.iter().map(|member| member.claimant).collect();
            return claim_all(tx, &claimants).await.ok()?;
        }
        let mut mine = Vec::with_capacity(self.members.len());
        for (member, gaps) in self.members.iter().zip(&self.gaps) {
            if !matches!(strategy, Strategy::Sequence { .. }) && !mine.is_empty() {
                mine.push(true);
                continue;
            }
            mine.push(match member.claimant.claim(tx, false, *gaps).await.ok()? {
                Outcome::Claimed => true,
                Outcome::Duplicate | Outcome::Buried => false,
                _ => return None,
            });
        }
        if mine.contains(&false) {
            self.members[0].claimant.restore_lock_limit(tx).await.ok()?;
        }
        Some(mine)
    }

    async fn effects(
        &self,
        members: &[&Input<'_>],
        tx: Option<&DatabaseTransaction>,
        recorded: &Recorded,
    ) -> Option<Vec<Effect>> {
        let inputs: Vec<_> = members.iter().map(|member| member.message.clone()).collect();
        let each = if self.call.handler.shape.several {
            inputs.len()
        } else {
            1
        };
        let mut effects = Vec::with_capacity(members.len());
        for (call, inputs) in inputs.chunks(each).enumerate() {
            let effect = self.call.run(inputs, tx, recorded).await;
            if let Err(Outcome::Deferred { wait, error }) = &effect {
                let (consumer, messages) = (self.call.consumer.name, inputs.len());
                let event_id = inputs[0].event_id;
                tracing::info!(consumer, messages, %event_id, ?wait, error, "handler deferred the message");
                let _ = self
                    .deferred
                    .set((self.places(members, call * each, each), *wait));
            }
            effects.push(effect.ok()?);
        }
        Some(effects)
    }

    fn places(&self, ours: &[&Input<'_>], first: usize, each: usize) -> Range<usize> {
        if self.call.handler.shape.several {
            return 0..self.members.len();
        }
        let is_first = |member: &Input<'_>| ours.get(first).is_some_and(|ours| std::ptr::eq(*ours, member));
        let place = self.members.iter().position(is_first).unwrap_or_default();
        place..place + each
    }

    async fn wait(&self) -> Option<Vec<Option<Outcome>>> {
        let (waiting, after) = self.deferred.get()?;
        for member in &self.members[waiting.clone()] {
            let noted = member
                .claimant
                .note_failing(self.call.consumer.shared.database.pool());
            noted.await.ok()?;
        }
        let deferred = Outcome::Retry {
            after: *after,
            reason: Retry::Deferred,
        };
        let places = 0..self.members.len();
        Some(
            places
                .map(|place| waiting.contains(&place).then(|| deferred.clone()))
                .collect(),
        )
    }

    fn done(&self, mine: &[bool]) -> Vec<Outcome> {
        let outcome = |(member, mine): (&Input<'_>, &bool)| {
            if !mine {
                return Outcome::Duplicate;
            }
            self.call.consumer.shared.services.hooks.handled(Handled {
                consumer: self.call.consumer.name,
                message: member.claimant.message,
            });
            Outcome::Handled
        };
        self.members.iter().zip(mine).map(outcome).collect()
    }
}
