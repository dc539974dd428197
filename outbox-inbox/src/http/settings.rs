//! Settings of the idempotency layer, their checks, and the database check, which runs only once.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderName;
use axum::http::request::Parts;
use outbox_sea_orm::{OutboxConfig, TableNames};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};
use tokio::sync::OnceCell;
use tokio_util::sync::DropGuard;

use super::key::Scope;
use super::purge;
use super::running_keys::Running;
use super::sql::RequestSql;
use crate::config::{PURGE_EVERY, RETENTION};
use crate::database::{Database, missing_feature};
use crate::rights::hidden;
use crate::runtime::InboxError;
use crate::start_error::{Problem, StartError};

/// Handling of a request without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissingKey {
    /// The layer answers with 400.
    #[default]
    Refuse,
    /// The handler of a request without a key runs in a transaction, but a repeated request runs
    /// again. No [`Scope`] is needed.
    PassThrough,
}

pub(super) type ScopeOf = dyn Fn(&Parts) -> Option<Scope> + Send + Sync;

#[derive(Clone)]
pub(super) struct Settings {
    db: DatabaseConnection,
    pub(super) scope: Arc<ScopeOf>,
    pub(super) missing_key: MissingKey,
    pub(super) retention: Duration,
    pub(super) purge_every: Duration,
    pub(super) handler_timeout: Duration,
    pub(super) request_bytes_max: usize,
    pub(super) response_bytes_max: usize,
    pub(super) also_stored: Vec<HeaderName>,
    pub(super) names: TableNames,
    pub(super) outbox: Arc<OutboxConfig>,
    pub(super) running: Running,
    pub(super) checked: OnceCell<Checked>,
}

#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub(super) database: Database,
    pub(super) sql: RequestSql,
    _purging: Arc<DropGuard>,
}

impl Settings {
    pub(super) fn new(db: DatabaseConnection, scope: Arc<ScopeOf>) -> Self {
        Self {
            db,
            scope,
            missing_key: MissingKey::default(),
            retention: Duration::from_secs(24 * 3600),
            purge_every: PURGE_EVERY,
            handler_timeout: Duration::from_secs(30),
            request_bytes_max: 1024 * 1024,
            response_bytes_max: 1024 * 1024,
            also_stored: Vec::new(),
            names: TableNames::default(),
            outbox: Arc::default(),
            running: Running::default(),
            checked: OnceCell::new(),
        }
    }

    pub(super) async fn checked(&self) -> Result<&Checked, InboxError> {
        self.checked
            .get_or_try_init(|| async {
                StartError::unless_empty(self.problems())?;
                let database = Database::inspect(self.db.clone())
                    .await
                    .map_err(InboxError::Tables)?;
                StartError::unless_empty(database.problem().into_iter().collect())?;
                let checked = self.inspect(database).await.map_err(InboxError::Tables)?;
                let table = self.names.table(self.db.get_database_backend(), "inbox_requests");
                let hidden = hidden(&self.db, &table).await.map_err(InboxError::Tables)?;
                StartError::unless_empty(hidden.into_iter().collect())?;
                Ok(checked)
            })
            .await
    }

    async fn inspect(&self, database: Database) -> Result<Checked, DbErr> {
        let sql = RequestSql::new(self.db.get_database_backend(), &self.names, self.retention);
        database.pool().query_one_raw(sql.probe()).await?;
        let purging = purge::start(database.clone(), sql.clone(), self.purge_every);
        Ok(Checked {
            database,
            sql,
            _purging: Arc::new(purging),
        })
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut fail = |text: String| problems.push(Problem::config(text));
        if !RETENTION.contains(&self.retention) {
            fail(format!(
                "retention is {:?}; use {:?} to {:?}",
                self.retention,
                RETENTION.start(),
                RETENTION.end()
            ));
        }
        if self.handler_timeout.is_zero() {
            fail("handler_timeout is 0; use more than 0".to_owned());
        }
        for (name, bytes) in [
            ("request_bytes_max", self.request_bytes_max),
            ("response_bytes_max", self.response_bytes_max),
        ] {
            if bytes == 0 {
                fail(format!("{name} is 0; use at least 1"));
            }
        }
        let backend = self.db.get_database_backend();
        if let Some(feature) = missing_feature(backend) {
            fail(format!(
                "feature `{feature}` of outbox-inbox is not enabled; enable it in Cargo.toml"
            ));
        }
        for names in [&self.names, &self.outbox.names] {
            problems.extend(
                names
                    .check(backend)
                    .err()
                    .map(|error| Problem::new(error.to_string())),
            );
        }
        problems
    }
}
