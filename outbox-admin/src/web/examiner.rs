//! The examination that the doctor's page shows: made once per process and interval, however many people ask.
//!
//! Invariants: at most one examination runs at a time, in a task of its own; an error is kept as long as a result is.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::OutboxAudit;
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::App;
use super::visit::Problem;
use crate::doctor::Examination;

/// How long an examination is shown.
pub(super) const EXAMINE_EVERY: Duration = Duration::from_secs(30);

/// Time that an examination has: it asks several servers, each within a bound of its own.
const EXAMINE_MAX: Duration = Duration::from_secs(60);

/// An examination, and when it was made by the clock of this machine.
#[derive(Debug, Clone)]
pub(super) struct Examined {
    pub(super) examination: Examination,
    pub(super) at: OffsetDateTime,
}

/// What was found last, and when.
type Last = (Instant, Result<Arc<Examined>, Problem>);

/// The last examination.
#[derive(Debug, Default)]
pub(super) struct Examiner(Mutex<Option<Last>>);

/// The examination of now: the last one, or another one if that is too old.
///
/// # Errors
///
/// [`Problem`] if this dashboard cannot examine.
pub(super) async fn latest<S: OutboxAudit>(app: &Arc<App<S>>) -> Result<Arc<Examined>, Problem> {
    let app = app.clone();
    // The task goes on if whoever asked has gone.
    match tokio::spawn(async move { examine(&app).await }).await {
        Ok(examined) => examined,
        Err(error) => Err(Problem::Failed(error.to_string())),
    }
}

async fn examine<S>(app: &App<S>) -> Result<Arc<Examined>, Problem> {
    let mut kept = app.examiner.0.lock().await;
    if let Some((at, examined)) = &*kept
        && at.elapsed() < EXAMINE_EVERY
    {
        return examined.clone();
    }
    let examined = match tokio::time::timeout(EXAMINE_MAX, app.stream.examine()).await {
        Ok(Ok(examination)) => Ok(Arc::new(Examined {
            examination,
            at: OffsetDateTime::now_utc(),
        })),
        Ok(Err(error)) => Err(Problem::NotFound(error)),
        Err(_) => Err(Problem::Silent(format!("no examination within {EXAMINE_MAX:?}"))),
    };
    *kept = Some((Instant::now(), examined.clone()));
    examined
}
