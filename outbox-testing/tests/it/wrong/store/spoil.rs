//! Mistakes in fetches and settlements.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::headers::Headers;
use outbox_core::message::Aggregate;
use outbox_core::store::{
    Fetched, FetchedRow, MessageStatus, Selection, Settlement, StoreError, Verdict, WaitingRequest,
};

use super::{M, WrongStore};
use outbox_testing::{Operator as _, StoredRow};

const HOUR: Duration = Duration::from_secs(3600);

fn is_copy(row: &FetchedRow) -> bool {
    let message = row.message.as_ref();
    message.is_ok_and(|message| message.event_id.as_uuid() != message.id.as_uuid())
}

impl WrongStore {
    pub(super) fn spoil(&self, fetched: &mut Fetched) -> Result<(), StoreError> {
        let rows = &mut fetched.due;
        match self.mistake {
            M::FetchesByCursor => {
                let mut memory = self.memory();
                rows.retain(|row| row.row_id > memory.cursor);
                memory.cursor = rows.iter().map(|row| row.row_id).fold(memory.cursor, i64::max);
            }
            M::FetchesOutOfOrder => rows.reverse(),
            M::OrdersByRowId => rows.sort_by_key(|row| row.row_id),
            M::PutsCopiesLast => rows.sort_by_key(is_copy),
            M::FetchesPublished => {
                let published = self.find(|row| row.status == MessageStatus::Published);
                rows.extend(published.into_iter().map(as_fetched));
            }
            M::DropsHeaders | M::ReplayKeepsMessageId | M::ReplayForgetsEvent => {
                self.spoil_messages(rows);
            }
            M::HidesUnreadable => rows.retain(|row| row.message.is_ok()),
            M::FailsOnUnreadable => {
                if let Some(context) = rows.iter().find_map(|row| row.message.as_ref().err()) {
                    return Err(StoreError::Corrupt {
                        context: context.to_string(),
                    });
                }
            }
            M::HandsOutBlocked => self.hand_out(fetched, |_| true),
            M::OvertakesDelayed => self.hand_out(fetched, |row| row.available_at.is_none()),
            M::BlocksForEver | M::UnsequencedBlocks | M::RetryKeepsHalt => self.drop_stuck(rows),
            M::BlocksUnsequenced => {
                let blocked = self.aggregates_with(|row| {
                    row.status == MessageStatus::Waiting && row.message.sequence.is_some()
                });
                rows.retain(|row| row.sequenced || !blocked.contains(&row.aggregate));
            }
            M::DelayedUnsequencedBlocks => {
                let blocked =
                    self.aggregates_with(|row| row.available_at.is_some() && row.message.sequence.is_none());
                rows.retain(|row| !blocked.contains(&row.aggregate));
            }
            _ => {}
        }
        Ok(())
    }

    fn drop_stuck(&self, rows: &mut Vec<FetchedRow>) {
        let memory = self.memory();
        rows.retain(|row| !memory.stuck.contains(&row.aggregate));
    }

    fn spoil_messages(&self, rows: &mut [FetchedRow]) {
        for message in rows.iter_mut().filter_map(|row| row.message.as_mut().ok()) {
            let message = Arc::make_mut(message);
            match self.mistake {
                M::DropsHeaders => message.headers = Headers::default(),
                M::ReplayKeepsMessageId => message.id = message.event_id.as_uuid().into(),
                M::ReplayForgetsEvent => message.event_id = message.id.into(),
                _ => {}
            }
        }
    }

    fn hand_out(&self, fetched: &mut Fetched, is_wanted: impl Fn(&StoredRow) -> bool) {
        let waits: HashSet<i64> = fetched.waits.iter().map(|waits| waits.row_id).collect();
        let found = self.find(|row| waits.contains(&row.row_id) && is_wanted(row));
        let is_found = |row_id| found.iter().any(|row| row.row_id == row_id);
        fetched.waits.retain(|waits| !is_found(waits.row_id));
        fetched.due.extend(found.into_iter().map(as_fetched));
    }

    fn aggregates_with(&self, is_wanted: impl Fn(&StoredRow) -> bool) -> HashSet<Aggregate> {
        let rows = self.find(is_wanted).into_iter();
        rows.map(|row| row.message.aggregate).collect()
    }

    pub(super) fn spoil_waiting(&self, fetched: &mut Fetched, request: &WaitingRequest<'_>) {
        let rows = &mut fetched.due;
        match self.mistake {
            M::FetchesWaitingOutOfOrder => rows.reverse(),
            M::OrdersByRowId => rows.sort_by_key(|row| row.row_id),
            M::PutsCopiesLast => rows.sort_by_key(is_copy),
            M::StarvesLateNames => rows.sort_by(|a, b| a.aggregate.cmp(&b.aggregate)),
            M::FoldsCase => {
                let folded = |aggregate: &Aggregate| aggregate.id.to_lowercase();
                let is_excluded = |row: &FetchedRow| {
                    let mut excluding = request.excluding.iter();
                    excluding.any(|excluded| folded(excluded) == folded(&row.aggregate))
                };
                rows.retain(|row| !is_excluded(row));
            }
            M::ForgetsDelayed => {
                let delayed = self.find(|row| row.available_at.is_some());
                rows.retain(|row| !delayed.iter().any(|delayed| delayed.row_id == row.row_id));
            }
            M::HeedsOneDelay => self.hand_out(fetched, |_| true),
            M::WaitsForTheLatest => {
                let now = self.inner.now();
                let delayed = self.aggregates_with(|row| row.available_at.is_some_and(|at| at > now));
                rows.retain(|row| !delayed.contains(&row.aggregate));
            }
            M::OvertakesPending => {
                let now = self.inner.now();
                let is_due = |row: &StoredRow| row.available_at.is_some_and(|at| at <= now);
                let found = self.find(|row| row.status == MessageStatus::Waiting && is_due(row));
                *rows = found.into_iter().map(as_fetched).collect();
            }
            M::DeadLettersEndTheDrain => self.drop_stuck(rows),
            M::RetryGoesLast => {
                let memory = self.memory();
                let is_retried = |row: &FetchedRow| {
                    let message = row.message.as_ref();
                    message.is_ok_and(|message| memory.retried.contains(&message.id))
                };
                rows.sort_by_key(is_retried);
            }
            _ => {}
        }
    }

    pub(super) async fn spoil_settlements(
        &self,
        settlements: &[Settlement],
    ) -> Result<Vec<Settlement>, StoreError> {
        let mut spoilt = settlements.to_vec();
        let is_settled = |row: &StoredRow| settlements.iter().any(|s| s.row_id == row.row_id);
        let rows = self.find(is_settled);
        let status = |settlement: &Settlement| {
            let row = rows.iter().find(|row| row.row_id == settlement.row_id);
            row.map(|row| row.status)
        };
        match self.mistake {
            M::ForgetsWhatWaits => spoilt.retain(|s| s.verdict != Verdict::Waits),
            M::KeepsTheFirstBlock => spoilt.retain(|s| {
                !matches!(s.verdict, Verdict::Blocked { .. }) || status(s) != Some(MessageStatus::Waiting)
            }),
            M::CountsChangedRows => {
                spoilt.retain(|s| matches!(status(s), Some(MessageStatus::Pending | MessageStatus::Waiting)))
            }
            M::SettlesDeadLetters => {
                for row in rows.iter().filter(|row| row.status == MessageStatus::Dead) {
                    self.inner.retry(&Selection::id(row.message.id)).await?;
                }
            }
            M::KeepsTheFirstHalt => {
                let halting = self.find(|row| row.halts);
                for settlement in &mut spoilt {
                    let row = rows.iter().find(|row| row.row_id == settlement.row_id);
                    let is_halted =
                        row.is_some_and(|row| halting.iter().any(|h| h.aggregate() == row.aggregate()));
                    if let Verdict::Dead { halt, .. } = &mut settlement.verdict {
                        *halt &= !is_halted;
                    }
                }
            }
            M::SettlesByRowId => spoilt.iter_mut().for_each(|settlement| settlement.id = None),
            M::RefusesOddErrors if spoilt.iter().any(|s| error_of(&s.verdict).contains('\0')) => {
                let source = Box::from("invalid byte sequence for encoding \"UTF8\": 0x00");
                let context = "settle messages";
                return Err(StoreError::Database { context, source });
            }
            _ => {}
        }
        for settlement in &mut spoilt {
            self.spoil_verdict(&mut settlement.verdict);
        }
        Ok(spoilt)
    }

    fn spoil_verdict(&self, verdict: &mut Verdict) {
        match (self.mistake, verdict) {
            (M::SetsAsideBlindly, verdict @ Verdict::Waits) => {
                *verdict = Verdict::Blocked {
                    delay: HOUR,
                    error: None,
                    attempt: false,
                };
            }
            (_, verdict @ Verdict::Paused) => self.spoil_paused(verdict),
            (M::IgnoresBackoff, Verdict::Blocked { delay, .. }) => *delay = Duration::ZERO,
            (M::BlocksTooLong, Verdict::Blocked { delay, .. }) => *delay = HOUR.max(*delay),
            (M::CountsEveryFailure, Verdict::Blocked { attempt, .. }) => *attempt = true,
            (M::ForgetsFailures, Verdict::Blocked { error, .. }) => *error = None,
            (M::KeepsEverything, Verdict::Published { keep }) => *keep = true,
            (M::KeepsNothing, Verdict::Published { keep }) => *keep = false,
            (M::NeverHalts, Verdict::Dead { halt, .. }) => *halt = false,
            (M::AlwaysHalts, Verdict::Dead { halt, .. }) => *halt = true,
            _ => {}
        }
    }

    fn stick(&self, aggregate: Aggregate) {
        self.memory().stuck.insert(aggregate);
    }

    pub(super) async fn after_settling(&self, settlements: &[Settlement]) -> Result<(), StoreError> {
        for settlement in settlements {
            let rows = self.find(|row| row.row_id == settlement.row_id);
            let Some(row) = rows.first() else { continue };
            let is_sequenced = row.message.sequence.is_some();
            let aggregate = row.aggregate().clone();
            match (self.mistake, &settlement.verdict) {
                (M::BlocksForEver, Verdict::Blocked { .. })
                | (M::DeadLettersEndTheDrain, Verdict::Dead { .. }) => self.stick(aggregate),
                (M::UnsequencedBlocks, Verdict::Blocked { .. }) if !is_sequenced => self.stick(aggregate),
                (M::BlockEndsHalt, Verdict::Blocked { .. }) => {
                    let dead = Selection::dead_letters().aggregate(&aggregate);
                    self.inner.skip(&dead).await?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn as_fetched(row: StoredRow) -> FetchedRow {
    row.fetched(row.message.created_at)
}

fn error_of(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Dead { error, .. } => error,
        Verdict::Blocked { error, .. } => error.as_deref().unwrap_or_default(),
        Verdict::Published { .. } | Verdict::Waits | Verdict::Paused => "",
    }
}
