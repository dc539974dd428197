//! Reads the slot.
//!
//! Invariants: a position is stored in `outbox_log` before the server receives the position. Only
//! the latest reading stores positions, and only while the publication is unchanged since the
//! opening. Positions are ends of commits, or keep-alives between transactions.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::time::Duration;

use outbox_core::StoreError;
use outbox_core::log::{LogEvent, LogReader, Position, Retained};
use pgwire_replication::{Lsn, PgWireError, ReplicationClient, ReplicationEvent};
use sea_orm::{ConnectionTrait, DatabaseConnection};
use tokio::time::{Instant, timeout_at};

use super::check::version_of_publication;
use super::failure::trouble;
use super::pgoutput::{Decoder, Transaction};
use super::sql::{Names, statement};
use super::table;

/// After this silence, the reader writes a marker into the WAL, which the server must send.
const QUIET_MAX: Duration = Duration::from_secs(20);

type Check = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send>>;

/// Reads the slot of a [`PostgresLog`](super::PostgresLog).
pub struct PostgresLogReader {
    client: ReplicationClient,
    db: DatabaseConnection,
    names: Names,
    number: i64,
    adopted_to: Position,
    decoder: Decoder,
    checking: Option<Check>,
    within: Option<Transaction>,
    heard_at: Instant,
    is_marked: bool,
    /// Positions, each with the oldest transaction open there. All earlier transactions are before
    /// the position.
    horizons: Vec<(Position, String)>,
}

impl fmt::Debug for PostgresLogReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLogReader")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl PostgresLogReader {
    pub(crate) fn new(
        client: ReplicationClient,
        db: DatabaseConnection,
        names: Names,
        number: i64,
        adopted_to: Position,
    ) -> Self {
        Self {
            client,
            db,
            names,
            number,
            adopted_to,
            decoder: Decoder::default(),
            checking: None,
            within: None,
            heard_at: Instant::now(),
            is_marked: false,
            horizons: Vec::new(),
        }
    }

    fn take(&mut self, event: ReplicationEvent) -> Result<Option<LogEvent>, StoreError> {
        (self.is_marked, self.heard_at) = (false, Instant::now());
        Ok(match event {
            ReplicationEvent::Begin { xid, final_lsn, .. } => {
                // A position is the end of a record. So a position after the record is at least one
                // byte after its start.
                let passed_from = Position(final_lsn.as_u64() + 1);
                self.within = Some(Transaction { xid, passed_from });
                None
            }
            ReplicationEvent::XLogData { data, .. } => {
                let within = self.within.unwrap_or_default();
                self.decoder.take(within, data)?.map(LogEvent::Message)
            }
            ReplicationEvent::Commit { end_lsn, .. } => {
                self.within = None;
                Some(LogEvent::Commit(Position(end_lsn.as_u64())))
            }
            ReplicationEvent::KeepAlive { wal_end, .. } if self.within.is_none() => {
                Some(LogEvent::Idle(Position(wal_end.as_u64())))
            }
            _ => None,
        })
    }

    /// The oldest transaction that may still write a row after this position.
    fn horizon(&mut self, position: Position) -> Option<String> {
        let passed = self
            .horizons
            .iter()
            .take_while(|(written, _)| *written <= position)
            .count();
        self.horizons.drain(..passed).next_back().map(|(_, xid)| xid)
    }

    async fn look_ahead(&mut self) -> Result<(), StoreError> {
        // The query takes its snapshot before it reads the position. So all transactions that have
        // ended in the snapshot precede the position.
        let sql = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS xid, \
                   (pg_current_wal_insert_lsn() - '0/0')::bigint AS position";
        let row = self.db.query_one_raw(statement(sql, [])).await;
        let read = row.and_then(|row| {
            let row = table::found(row)?;
            Ok((table::position(&row, "position")?, row.try_get("", "xid")?))
        });
        self.horizons
            .push(read.map_err(trouble("the end of the log could not be read"))?);
        Ok(())
    }
}

impl LogReader for PostgresLogReader {
    async fn next(&mut self) -> Result<LogEvent, StoreError> {
        loop {
            if mem::take(&mut self.decoder.has_described) {
                let check = check_published(self.db.clone(), self.names.clone());
                self.checking = Some(Box::pin(check));
            }
            if let Some(check) = &mut self.checking {
                // If the caller drops the future of `next`, the next call continues the check.
                let checked = check.await;
                self.checking = None;
                checked?;
            }
            // Callers drop the future of `next` repeatedly, so the timeout starts at the last
            // event.
            let quiet = QUIET_MAX * (1 + u32::from(self.is_marked));
            let event = match timeout_at(self.heard_at + quiet, self.client.recv()).await {
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None)) => return Err(ended("the server has ended the replication".into())),
                Ok(Err(error)) => {
                    if let PgWireError::MessageTooLarge { payload_bytes, .. } = error {
                        leave_to_table(&self.db, &self.names, self.number, payload_bytes).await?;
                    }
                    return Err(ended(Box::new(error)));
                }
                Err(_) if !self.is_marked => {
                    table::written(&self.db).await?;
                    self.is_marked = true;
                    continue;
                }
                Err(_) => {
                    return Err(StoreError::Silent {
                        context: "the replication connection is silent",
                        waited: QUIET_MAX,
                    });
                }
            };
            if let Some(event) = self.take(event)? {
                return Ok(event);
            }
        }
    }

    /// Confirms a stored position to the server. A crash between storing and confirming only makes
    /// the log retain more.
    async fn confirm(&mut self, position: Position) -> Result<(), StoreError> {
        let passed = self.horizon(position);
        let sql = format!(
            "UPDATE {} SET position = GREATEST(position, $1), passed_xid = COALESCE($2::text::xid8, passed_xid), stored_at = clock_timestamp() \
             WHERE name = $3 AND reading = $4 AND is_on AND publication = {} RETURNING name",
            self.names.log,
            version_of_publication(&self.names)
        );
        let values = [
            i64::try_from(position.0).unwrap_or(i64::MAX).into(),
            passed.into(),
            self.names.slot.clone().into(),
            self.number.into(),
        ];
        let stored = table::write(&self.db, statement(sql, values)).await;
        let stored = stored.map_err(trouble("the position in the log could not be stored"))?;
        if stored.is_none() {
            return Err(ended(
                "another relay has begun to read the log, the log was dropped, or the publication was changed".into(),
            ));
        }
        self.client.update_applied_lsn(Lsn::from_u64(position.0));
        if self.horizons.len() < 2 {
            self.look_ahead().await?;
        }
        Ok(())
    }

    async fn retained(&mut self) -> Result<Retained, StoreError> {
        // While no message is published, only this query detects a changed publication.
        check_published(self.db.clone(), self.names.clone()).await?;
        let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS bytes, safe_wal_size AS safe \
                   FROM pg_replication_slots WHERE slot_name = $1";
        let row = self
            .db
            .query_one_raw(statement(sql, [self.names.slot.clone().into()]))
            .await;
        let read = row.and_then(|row| {
            let row = table::found(row)?;
            let unsigned = |value: i64| u64::try_from(value).unwrap_or_default();
            Ok(Retained {
                bytes: row.try_get::<Option<i64>>("", "bytes")?.map_or(0, unsigned),
                safe: row.try_get::<Option<i64>>("", "safe")?.map(unsigned),
            })
        });
        read.map_err(trouble("the retained size of the slot could not be read"))
    }

    fn adopted_to(&self) -> Position {
        self.adopted_to
    }

    async fn close(mut self) {
        if let Err(error) = self.client.shutdown().await {
            tracing::debug!(%error, "the replication connection was not closed cleanly");
        }
    }
}

/// Ends the reading at a row larger than [`MESSAGE_BYTES_MAX`](super::address::MESSAGE_BYTES_MAX),
/// because the slot cannot be read past such a row. The next opening recreates the slot, and the
/// row becomes pending.
async fn leave_to_table(
    db: &DatabaseConnection,
    names: &Names,
    reading: i64,
    row_bytes: usize,
) -> Result<(), StoreError> {
    tracing::warn!(
        slot = names.slot,
        row_bytes,
        "the log holds a row that is too large to be read; the slot is recreated, and the table publishes undecided messages"
    );
    let sql = format!(
        "UPDATE {} SET publication = NULL WHERE name = $1 AND reading = $2 AND is_on",
        names.log
    );
    let left = table::write(db, statement(sql, [names.slot.clone().into(), reading.into()])).await;
    left.map(drop)
        .map_err(trouble("a row that is too large could not be left to the table"))
}

/// Fails if the publication has changed. Rows written without the publication come from the table,
/// and must not be overtaken.
async fn check_published(db: DatabaseConnection, names: Names) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM {} WHERE name = $1 AND publication = {}) AS value",
        names.log,
        version_of_publication(&names)
    );
    let is_published = table::value(&db, statement(sql, [names.slot.into()])).await;
    match is_published.map_err(trouble("the publication could not be looked up"))? {
        true => Ok(()),
        false => Err(ended("the publication was changed".into())),
    }
}

fn ended(source: Box<dyn std::error::Error + Send + Sync>) -> StoreError {
    StoreError::Database {
        context: "reading the log was interrupted",
        source,
    }
}
