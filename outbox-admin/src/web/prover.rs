//! The proof that the dashboard draws up: one at a time in a process, in a task of its own, within a time.
//!
//! Invariants: looking at a proof starts none. A second one is refused while the first runs. A proof that is ended, runs out of time or panics leaves nothing
//! behind but the text that says so. Only the last one is kept, in memory.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;
use tokio::task::AbortHandle;

use super::App;
use super::source::ProofSpan;
use super::visit::Problem;
use crate::serial;
use crate::{Proof, ProofStage};

/// The longest span that is proven here. The command line has no such bound.
pub(super) const SPAN_MAX: time::Duration = time::Duration::days(31);

/// The time that a proof has.
pub(super) const PROVE_MAX: Duration = Duration::from_secs(600);

/// A proof that is drawn up.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Running {
    #[serde(flatten)]
    pub(super) span: ProofSpan,
    /// Who has asked for it.
    pub(super) by: String,
    #[serde(serialize_with = "serial::time")]
    pub(super) began_at: OffsetDateTime,
    /// What is done at the moment.
    pub(super) stage: &'static str,
    /// Rows and messages that were read for that.
    pub(super) read: u64,
}

/// A proof that has ended.
#[derive(Debug, Serialize)]
pub(super) struct Ended {
    #[serde(flatten)]
    pub(super) span: ProofSpan,
    /// Who has asked for it.
    pub(super) by: String,
    #[serde(serialize_with = "serial::time")]
    pub(super) began_at: OffsetDateTime,
    #[serde(serialize_with = "serial::time")]
    pub(super) ended_at: OffsetDateTime,
    /// Why there is none.
    pub(super) error: Option<String>,
    pub(super) proof: Option<Proof>,
}

/// What is drawn up, and what was drawn up last.
#[derive(Debug, Default)]
struct State {
    running: Option<(Running, AbortHandle)>,
    last: Option<Arc<Ended>>,
}

/// Draws up proofs.
#[derive(Debug, Default)]
pub(super) struct Prover(Mutex<State>);

impl Prover {
    /// What is drawn up, and what was drawn up last.
    pub(super) fn look(&self) -> (Option<Running>, Option<Arc<Ended>>) {
        self.with(|state| {
            let running = state.running.as_ref().map(|(running, _)| running.clone());
            (running, state.last.clone())
        })
    }

    /// Ends the proof that is drawn up. Returns whether there was one.
    pub(super) fn end(&self) -> bool {
        self.with(|state| match &state.running {
            Some((_, task)) => {
                task.abort();
                true
            }
            None => false,
        })
    }

    fn note(&self, stage: ProofStage, read: u64) {
        self.with(|state| {
            if let Some((running, _)) = &mut state.running {
                (running.stage, running.read) = (stage.as_str(), read);
            }
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        // No code between lock and release panics half-way through a change.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Begins to draw up the ledger of a span.
///
/// # Errors
///
/// [`Problem::Busy`] while another one is drawn up.
pub(super) fn start(app: &Arc<App>, span: ProofSpan, by: &str) -> Result<(), Problem> {
    // Held until the proof is noted, so that its task cannot end before.
    let mut state = app.prover.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((running, _)) = &state.running {
        return Err(Problem::Busy(format!(
            "a proof is drawn up already, for {}; wait for its end, or end it",
            running.by
        )));
    }
    let running = Running {
        span,
        by: by.to_owned(),
        began_at: OffsetDateTime::now_utc(),
        stage: ProofStage::Outbox.as_str(),
        read: 0,
    };
    let proving = tokio::spawn(draw_up(app.clone(), span));
    state.running = Some((running, proving.abort_handle()));
    let app = app.clone();
    tokio::spawn(async move {
        let outcome = proving.await.unwrap_or_else(|error| match error.is_cancelled() {
            true => Err("it was ended before it was complete".to_owned()),
            false => Err(format!("this is a bug: {error}")),
        });
        app.prover.with(|state| keep(state, outcome));
    });
    Ok(())
}

fn keep(state: &mut State, outcome: Result<Proof, String>) {
    let Some((running, _)) = state.running.take() else {
        return;
    };
    let (proof, error) = match outcome {
        Ok(proof) => (Some(proof), None),
        Err(error) => (None, Some(error)),
    };
    state.last = Some(Arc::new(Ended {
        span: running.span,
        by: running.by,
        began_at: running.began_at,
        ended_at: OffsetDateTime::now_utc(),
        error,
        proof,
    }));
}

async fn draw_up(app: Arc<App>, span: ProofSpan) -> Result<Proof, String> {
    let progress = |stage: ProofStage, read: u64| app.prover.note(stage, read);
    match tokio::time::timeout(PROVE_MAX, app.stream.prove(span, &progress)).await {
        Ok(proof) => proof,
        Err(_) => Err(format!(
            "it was not complete within {} minutes; choose a shorter span, or use `outbox prove`, which has no such bound",
            PROVE_MAX.as_secs() / 60
        )),
    }
}
