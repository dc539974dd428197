//! Looks at the log of an outbox again and again, for whoever shows it live.
//!
//! Invariant: nothing is changed. A database without a log is asked for one once a minute only.

use std::time::Duration;

use outbox::log::SlotStatus;
use sea_orm::DbBackend;
use tokio::time::Instant;

use super::log;
use super::log_row::is_there;
use super::place::Place;

/// How often a database that has no log is asked for one, unless the file says that a relay reads it.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The looks at one log.
#[derive(Debug, Default)]
pub(super) struct LogLooks {
    /// When there was none.
    without: Option<Instant>,
}

impl LogLooks {
    /// How the log stands; `None` if it was never set up, or the database has none. The error is for people.
    pub(super) async fn look(&mut self, place: &Place) -> Result<Option<SlotStatus>, String> {
        let db = place.store.connection();
        if db.get_database_backend() != DbBackend::Postgres {
            return Ok(None);
        }
        let was_asked = self.without.is_some_and(|at| at.elapsed() < LOG_EVERY);
        if was_asked && !place.outbox.section.log.read {
            return Ok(None);
        }
        let log = log::of(&place.outbox, db.clone()).map_err(|error| error.to_string())?;
        let status = tokio::time::timeout(place.timeout, log.status()).await;
        let status = status.map_err(|_| format!("no answer within {:?}", place.timeout))?;
        let status = status.map_err(|error| place.explain(&error))?;
        let is_there = is_there(&status);
        self.without = (!is_there).then(Instant::now);
        Ok(is_there.then_some(status))
    }
}
