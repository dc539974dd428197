//! Mistakes in pauses.

use std::time::Duration;

use outbox_core::store::{OutboxStore, Selection, StoreError, Verdict};

use super::{M, WrongStore};
use outbox_testing::Operator as _;

const HOURS: Duration = Duration::from_secs(36_000);

impl WrongStore {
    pub(super) async fn finish_wrongly(&self) -> Result<bool, StoreError> {
        let ended = self.inner.pauses().await?.iter().any(|pause| !pause.stands());
        if !ended {
            return self.inner.finish_pauses().await;
        }
        match self.mistake {
            M::HoldsForEver => {
                self.inner.drop_ended_pauses();
                return Ok(false);
            }
            M::PauseEndsHalt => {
                self.inner.skip(&Selection::dead_letters()).await?;
            }
            M::PauseForgetsDelayed => {
                let delayed = self.find(|row| row.available_at.is_some());
                for row in delayed {
                    self.inner.discard(row.row_id);
                }
            }
            _ => {}
        }
        self.inner.finish_pauses().await
    }

    pub(super) fn spoil_paused(&self, verdict: &mut Verdict) {
        let held = |delay| Verdict::Blocked {
            delay,
            error: None,
            attempt: false,
        };
        match self.mistake {
            M::HoldsForAMoment => *verdict = held(Duration::ZERO),
            M::HoldsWithoutAPause => *verdict = held(HOURS),
            _ => {}
        }
    }
}
