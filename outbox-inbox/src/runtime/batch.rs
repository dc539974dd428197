//! Handles several messages in one transaction.
//!
//! Invariant: all of them take effect, or none does and each is handled by itself. So one that fails costs the others a second run, and
//! nobody an attempt. Absent here: which messages stand together ([`super::dispatch`]), and what happens to each by itself ([`super::attempt`]).

use std::sync::Arc;

use outbox_core::{Incoming, Message};
use sea_orm::DatabaseTransaction;

use super::consumer::{Consumer, Stop};
use super::routed::{Handling, Route, RoutedMessage};
use super::run::{RunOutcome, needs_transaction};
use crate::database::roll_back;
use crate::dedup::claim::{Claim, Claimant, claim_all};
use crate::dedup::sequence::Gaps;
use crate::handler::{Effect, OnDuplicate, Recorded, Registration, Strategy};
use crate::hook::Handled;

/// One message of a batch.
struct Member<'a> {
    message: &'a Arc<Message>,
    input: Arc<Message>,
    claimant: Claimant<'a>,
}

impl Consumer {
    /// Handles messages of one handler together, none of which has failed before. `None`: handle them one by one; nothing has happened.
    pub(super) async fn handle_together(
        &self,
        items: &[(&Incoming, &RoutedMessage)],
        handler: &Arc<Registration>,
        stop: &Stop,
    ) -> Option<Vec<Handling>> {
        let options = &handler.options;
        // A store is asked for one message at a time; and what a duplicate leads to is decided one by one.
        if matches!(options.strategy, Strategy::External) || options.on_duplicate != OnDuplicate::Skip {
            return None;
        }
        let members: Vec<Member<'_>> = items
            .iter()
            .map(|(_, routed)| self.member(routed, handler))
            .collect::<Option<_>>()?;
        if matches!(options.strategy, Strategy::Natural) && !needs_transaction(handler) {
            let mine: Vec<_> = members.iter().collect();
            let recorded = Recorded::default();
            let effects = self.call_members(&mine, handler, None, &recorded, stop).await?;
            return Some(self.done(&members, &vec![true; members.len()], effects));
        }
        let tx = self.shared.database.begin().await.ok()?;
        match self.in_transaction(&tx, &members, handler, stop).await {
            Some((mine, effects, recorded)) => match self.commit(tx, &recorded, None).await {
                RunOutcome::Handled { .. } => Some(self.done(&members, &mine, effects)),
                // Whether it is committed may be unknown. One by one they find out.
                _ => None,
            },
            None => {
                roll_back(tx).await;
                None
            }
        }
    }

    fn member<'a>(&'a self, routed: &'a RoutedMessage, handler: &Registration) -> Option<Member<'a>> {
        let message = routed.message.as_ref().ok()?;
        let Route::Handler { upcast_to, .. } = &routed.route else {
            return None;
        };
        let (input, id) = self.prepare(message, handler, *upcast_to).ok()?;
        let claimant = self.claimant(message, handler.options.strategy, id);
        Some(Member {
            message,
            input,
            claimant,
        })
    }

    /// Claims, runs, and looks whether everything holds.
    async fn in_transaction(
        &self,
        tx: &DatabaseTransaction,
        members: &[Member<'_>],
        handler: &Registration,
        stop: &Stop,
    ) -> Option<(Vec<bool>, Vec<Effect>, Recorded)> {
        let mine = self.claim_members(tx, members).await?;
        let ours: Vec<_> = members
            .iter()
            .zip(&mine)
            .filter_map(|(member, mine)| mine.then_some(member))
            .collect();
        let recorded = Recorded::default();
        if ours.is_empty() {
            return Some((mine, Vec::new(), recorded));
        }
        let mut effects = self
            .call_members(&ours, handler, Some(tx), &recorded, stop)
            .await?;
        for (member, effect) in ours.iter().zip(&mut effects) {
            let events = std::mem::take(&mut effect.events);
            self.emit(tx, member.message, events, &recorded).await.ok()?;
            if let (true, Some(result)) = (handler.options.strategy.keeps_rows(), &effect.result)
                && !member.claimant.store(tx, Some(result.clone()), &[]).await.ok()?
            {
                return None;
            }
        }
        // What ends a transaction ends all its claims.
        let holds = !recorded.in_doubt() || ours[0].claimant.still_holds(tx).await.ok()?;
        holds.then_some((mine, effects, recorded))
    }

    /// Which of them are ours; the others took effect before. `None`: one is in doubt.
    async fn claim_members(&self, tx: &DatabaseTransaction, members: &[Member<'_>]) -> Option<Vec<bool>> {
        if members[0].claimant.strategy.keeps_rows() {
            let claimants: Vec<_> = members.iter().map(|member| member.claimant).collect();
            return claim_all(tx, &claimants).await.ok()?;
        }
        let strategy = members[0].claimant.strategy;
        let gaps = match strategy {
            Strategy::Sequence { gap: Some(gap) } if gap.is_zero() => Gaps::Ignore,
            _ => Gaps::Wait,
        };
        let mut mine = Vec::with_capacity(members.len());
        for member in members {
            // Without bookkeeping one question about the transaction answers for all.
            if !matches!(strategy, Strategy::Sequence { .. }) && !mine.is_empty() {
                mine.push(true);
                continue;
            }
            mine.push(match member.claimant.claim(tx, false, gaps).await.ok()? {
                Claim::Mine => true,
                Claim::Done | Claim::Dead => false,
                Claim::CountFirst | Claim::Early { .. } | Claim::Late => return None,
            });
        }
        Some(mine)
    }

    /// Runs a handler of several messages once, another once for each. One effect per run, in order; that of several belongs to the first.
    async fn call_members(
        &self,
        members: &[&Member<'_>],
        handler: &Registration,
        tx: Option<&DatabaseTransaction>,
        recorded: &Recorded,
        stop: &Stop,
    ) -> Option<Vec<Effect>> {
        let inputs: Vec<_> = members.iter().map(|member| member.input.clone()).collect();
        let runs = if handler.shape.several { inputs.len() } else { 1 };
        let mut effects = Vec::with_capacity(members.len());
        for inputs in inputs.chunks(runs) {
            effects.push(self.call(inputs, handler, 1, tx, recorded, stop).await.ok()?);
        }
        Some(effects)
    }

    fn done(&self, members: &[Member<'_>], mine: &[bool], effects: Vec<Effect>) -> Vec<Handling> {
        let mut effects = effects.into_iter();
        members
            .iter()
            .zip(mine)
            .map(|(member, mine)| {
                if !mine {
                    return Handling::Duplicate;
                }
                let result = effects.next().and_then(|effect| effect.result);
                self.shared.hooks.handled(Handled {
                    consumer: self.name,
                    message: member.message,
                    duplicate: false,
                    result: result.as_deref(),
                });
                Handling::Handled
            })
            .collect()
    }
}
