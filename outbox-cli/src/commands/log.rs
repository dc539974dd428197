//! `outbox log`: sets the database's log up for a relay that reads it, shows how it stands, and takes it down.
//!
//! Invariant: nothing is made or changed without `--yes`. A crash half-way leaves steps that the same command completes.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use outbox::Failure;
use outbox_log::{PostgresLog, SlotStatus};
use sea_orm::{DatabaseConnection, DbBackend};
use serde::Serialize;

use super::arguments::PlaceArguments;
use super::confirm::ConfirmArguments;
use super::place::Place;
use super::text;
use crate::config::Outbox;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Column, Format, Print, plain, say};

/// The commands of the log.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum LogCommand {
    /// Make the slot, and new messages the log's. Says what it would do and what it would lock; `--yes` does it.
    Init(LogChangeCommand),
    /// How the log stands, and how much of the database's disk it keeps.
    Status(LogStatusCommand),
    /// Let the table have all messages again, and drop the slot. Says what it would do and what it would lock; `--yes` does it.
    Drop(LogChangeCommand),
}

/// Arguments of `outbox log status`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct LogStatusCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
}

/// Arguments of `outbox log init` and `outbox log drop`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct LogChangeCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Do it. Otherwise the command only says what it would do.
    #[arg(long)]
    pub yes: bool,
    /// How it is confirmed in production.
    #[command(flatten)]
    pub confirm: ConfirmArguments,
}

/// What `init` would do.
const INIT: &str = "would make the table outbox_log, a publication and a replication slot, and change the default of the column `status`\n\
    \x20 the slot begins when all transactions have ended that are open now; that is waited for 30 s\n\
    \x20 the last step locks the table of messages for a moment, and waits for its lock for 2 s at a time, 30 times\n\
    \x20 from then on only a relay with `log.read = true` publishes new messages, so start one at once\n";
/// What `drop` would do.
const DROP: &str = "would make all messages pending that the log has not published, and drop the slot and the publication\n\
    \x20 it reads the whole table of messages under a lock that keeps readers and writers out: about a second for a million rows\n\
    \x20 it waits for its lock for 2 s at a time, 30 times, and 90 s for the relay that reads the slot\n\
    \x20 afterwards polling relays publish everything; a relay with `log.read = true` goes on with the table until it is started anew\n";

impl LogCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        match self {
            Self::Init(command) => command.init().await,
            Self::Drop(command) => command.drop().await,
            Self::Status(command) => {
                let place = Place::open(&command.place).await?;
                let status = asked(&place).await?;
                show(command.place.output, status)
            }
        }
    }
}

impl LogChangeCommand {
    async fn init(&self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        let log = of_place(&place)?;
        place.ask(log.check()).await?;
        if self.yes {
            self.confirm.check(&place, async { Ok(1) }).await?;
            place.carry_out(log.init()).await?;
            // That no relay reads it yet is what comes next, and no failure of this.
            output::one(self.place.output, &LogRow::of(asked(&place).await?))?;
            return Ok(Outcome::Well);
        }
        let status = asked(&place).await?;
        if status.is_on {
            say("the log is on; nothing would be changed");
            return show(self.place.output, status);
        }
        preview(self.place.output, status, INIT)
    }

    async fn drop(&self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        let status = asked(&place).await?;
        if !status.is_on && !status.exists {
            output::one(self.place.output, &LogRow::of(status))?;
            say("there is no log to take down");
            return Ok(Outcome::NothingMatched);
        }
        if !self.yes {
            return preview(self.place.output, status, DROP);
        }
        self.confirm.check(&place, async { Ok(1) }).await?;
        place.carry_out(of_place(&place)?.drop()).await?;
        output::one(self.place.output, &LogRow::of(asked(&place).await?))?;
        Ok(Outcome::Well)
    }
}

/// The log of an outbox as the file names it. The pool may be lazy: nothing is asked.
pub(super) fn of(outbox: &Outbox, db: DatabaseConnection) -> Result<PostgresLog, Failure> {
    let log = PostgresLog::new(db, outbox.log_url.expose())?.named(&outbox.section.log.name)?;
    Ok(log.with_names(&outbox.table_names()?))
}

fn of_place(place: &Place) -> Result<PostgresLog, CommandError> {
    of(&place.outbox, place.store.connection().clone()).map_err(CommandError::Configuration)
}

async fn asked(place: &Place) -> Result<SlotStatus, CommandError> {
    let log = of_place(place)?;
    place.ask(log.status()).await
}

fn preview(format: Format, status: SlotStatus, would: &'static str) -> Result<Outcome, CommandError> {
    let row = LogRow {
        would: Some(would),
        ..LogRow::of(status)
    };
    output::one(format, &row)?;
    say("nothing was changed; repeat it with `--yes`");
    Ok(Outcome::Well)
}

fn show(format: Format, status: SlotStatus) -> Result<Outcome, CommandError> {
    let row = LogRow::of(status);
    output::one(format, &row)?;
    Ok(match row.next {
        Some(_) if row.is_on || row.exists => Outcome::Degraded,
        _ => Outcome::Well,
    })
}

/// The log of an outbox, for `outbox status`. `None` if it was never set up, or the database has none.
pub(super) async fn of_status(place: &Place) -> Option<LogRow> {
    if place.store.connection().get_database_backend() != DbBackend::Postgres {
        return None;
    }
    match asked(place).await {
        Ok(status) => (status.is_on || status.exists).then(|| LogRow::of(status)),
        Err(CommandError::Configuration(failure) | CommandError::Failed(failure)) => {
            say(&format!("the log cannot be looked at: {failure}"));
            None
        }
    }
}

/// How a log stands.
#[derive(Debug, Serialize)]
pub(super) struct LogRow {
    /// The slot.
    name: String,
    pub(super) is_on: bool,
    exists: bool,
    is_read: bool,
    is_lost: bool,
    /// Everything up to this position is published or the table's.
    stored: Option<u64>,
    retained_bytes: Option<u64>,
    /// `null` if the server never gives the slot up.
    safe_bytes: Option<u64>,
    /// What is wrong, and what to do.
    pub(super) next: Option<Next>,
    /// What the command would do.
    #[serde(skip)]
    would: Option<&'static str>,
}

/// What is wrong, and what to do.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Next {
    pub(super) what: &'static str,
    pub(super) next: &'static str,
}

impl LogRow {
    fn of(status: SlotStatus) -> Self {
        let wrong = match &status {
            SlotStatus {
                is_on: false,
                exists: true,
                ..
            } => Some((
                "the log is off, and its slot keeps the database's disk",
                "outbox log drop --yes",
            )),
            SlotStatus { is_on: false, .. } => None,
            SlotStatus { exists: false, .. } => Some((
                "the slot was dropped; the relay that opens the log makes it anew",
                "outbox relay run, with `log.read = true`",
            )),
            SlotStatus { is_lost: true, .. } => Some((
                "the database has given the slot up; the relay that opens the log makes it anew, and some messages come twice",
                "outbox relay run, with `log.read = true`",
            )),
            SlotStatus { is_read: false, .. } => Some((
                "no relay reads the log: nothing new is published, and the slot keeps the database's disk",
                "outbox relay run, with `log.read = true`; or outbox log drop",
            )),
            _ => None,
        };
        Self {
            next: wrong.map(|(what, next)| Next { what, next }),
            name: status.name,
            is_on: status.is_on,
            exists: status.exists,
            is_read: status.is_read,
            is_lost: status.is_lost,
            stored: status.stored.map(|position| position.0),
            retained_bytes: status.retained_bytes,
            safe_bytes: status.safe_bytes,
            would: None,
        }
    }

    /// In a line, for people.
    pub(super) fn line(&self) -> String {
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        format!(
            "log         {}, slot {}{}; keeps {} bytes of the database's disk, given up after {} more",
            if self.is_on { "on" } else { "off" },
            plain(&self.name),
            match (self.exists, self.is_read) {
                (false, _) => " (missing)",
                (true, true) => ", read by a relay",
                (true, false) => ", read by nobody",
            },
            bytes(self.retained_bytes),
            bytes(self.safe_bytes),
        )
    }
}

impl Print for LogRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("name", |row| row.name.clone()),
        Column::new("on", |row| text::yes(row.is_on)),
        Column::new("exists", |row| text::yes(row.exists)),
        Column::new("read", |row| text::yes(row.is_read)),
        Column::new("lost", |row| text::yes(row.is_lost)),
        Column::new("retained_bytes", |row| text::any(row.retained_bytes)),
        Column::new("safe_bytes", |row| text::any(row.safe_bytes)),
        Column::wide("stored", |row| text::any(row.stored)),
    ];

    fn name(&self) -> String {
        self.name.clone()
    }

    fn text(&self) -> Option<String> {
        let mut text = format!("{}\n", self.line());
        // Writing to a `String` does not fail.
        if let Some(would) = self.would {
            let _ = write!(text, "{would}");
        } else if let Some(Next { what, next }) = &self.next {
            let _ = writeln!(text, "  {what}\n  next: {next}");
        }
        Some(text)
    }
}
