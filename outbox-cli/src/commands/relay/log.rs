//! `outbox relay log`: sets up and removes the database log for a log relay.
//!
//! Every change is a recorded operation.

use crate::admin::doctor::{Check, Diagnosis};
use crate::admin::{Next, Plan, State};
use clap::{Args, Subcommand};
use outbox::Failure;
use outbox::core::log::MessageLog as _;
use outbox::core::{Operation, OperationKind, OperationScope, OutboxAudit as _, describe};
use outbox::log::{PostgresLog, SlotStatus};
use sea_orm::{DatabaseConnection, DbBackend};
use time::OffsetDateTime;

use super::super::arguments::PlaceArguments;
use super::super::intent::MakeArguments;
use super::super::outcome::{previewed, say_operation};
use super::super::place::Place;
use super::log_row::{self, LogRow, is_there};
use crate::config::Outbox;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, say};

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Create the replication slot, and let the log relay publish new messages. Without `--yes`,
    /// print the changes and the locks only.
    Init(LogChangeCommand),
    /// Make all logged messages pending again, and drop the replication slot. Without `--yes`,
    /// print the changes and the locks only.
    Drop(LogChangeCommand),
}

/// Arguments of `outbox relay log init` and `outbox relay log drop`.
#[derive(Debug, Clone, Args)]
pub struct LogChangeCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Change options.
    #[command(flatten)]
    pub make: MakeArguments,
}

const INIT: [&str; 4] = [
    "the table outbox_log, a publication and a replication slot are created, and the default of the column `status` changes",
    "the slot starts after all open transactions have ended, within 30 s",
    "the last step locks the table of messages briefly, and waits for the lock for 2 s, 30 times",
    "from then on only a relay with `log.read = true` publishes new messages: start it at once",
];

const DROP: [&str; 5] = [
    "unpublished messages of the log become pending; the slot and the publication are dropped",
    "without the table outbox_log, all logged messages become pending",
    "it reads the whole table of messages under an exclusive lock: about a second for a million rows",
    "it waits for the lock for 2 s, 30 times, and 90 s for the relay that reads the slot",
    "afterwards polling relays publish everything; a relay with `log.read = true` polls the table until its restart",
];

impl LogCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        match self {
            Self::Init(command) => command.init().await,
            Self::Drop(command) => command.drop().await,
        }
    }
}

impl LogChangeCommand {
    async fn init(&self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        let log = of_place(&place)?;
        place.ask(log.check()).await?;
        if self.make.yes {
            self.make.confirm.check(&place, async { Ok(1) }).await?;
            let before = asked(&place).await?;
            let changed = u64::from(!before.is_on || !before.takes_new);
            // Slot changes are not transactional. A crash leaves an unfinished operation and steps
            // that the same command completes.
            self.recorded(&place, OperationKind::InitLog, changed, log.init())
                .await?;
            // If no log relay is running yet, `init` prints that as the next step and succeeds.
            output::one(self.place.output, &LogRow::of(asked(&place).await?))?;
            return Ok(Outcome::Done);
        }
        let status = asked(&place).await?;
        if status.is_on && status.takes_new {
            say("the log is on; nothing would be changed");
            let row = LogRow::of(status);
            output::one(self.place.output, &row)?;
            return Ok(row.next.map_or(Outcome::Done, |next| next.state.into()));
        }
        previewed(self.place.output, &plan_of("create", status, &INIT))
    }

    async fn drop(&self) -> Result<Outcome, CommandError> {
        let place = Place::open_to_change(&self.place).await?;
        let status = asked(&place).await?;
        let log = of_place(&place)?;
        let is_left = status.exists || (status.other.is_none() && is_there(&status));
        let is_there = is_left || place.carry_out(log.has_unclaimed()).await?;
        if !is_there {
            let plan = Plan::nothing("remove", log_of(&status), "there is no log to remove");
            return previewed(self.place.output, &plan);
        }
        if !self.make.yes {
            return previewed(self.place.output, &plan_of("remove", status, &DROP));
        }
        self.make.confirm.check(&place, async { Ok(1) }).await?;
        self.recorded(&place, OperationKind::DropLog, 1, log.drop())
            .await?;
        output::one(self.place.output, &LogRow::of(asked(&place).await?))?;
        Ok(Outcome::Done)
    }

    async fn recorded<T, E: std::error::Error + 'static>(
        &self,
        place: &Place,
        kind: OperationKind,
        changed: u64,
        change: impl Future<Output = Result<T, E>>,
    ) -> Result<(), CommandError> {
        let scope = OperationScope::names([&place.outbox.section.log.name]);
        let operation = Operation::new(kind, scope, self.make.intent.intent());
        place.ask(place.store.write_down(&operation)).await?;
        let changing = place.carry_out(change).await;
        changing.inspect_err(|_| {
            say(&format!(
                "operation {} is recorded as unfinished; re-run the command to continue, as another operation",
                operation.id
            ));
        })?;
        place.ask(place.store.finish(operation.id, changed)).await?;
        say_operation(operation.id);
        Ok(())
    }
}

/// The configured log. Opening sends no query, so the pool may be lazy.
pub(in crate::commands) fn of(outbox: &Outbox, db: DatabaseConnection) -> Result<PostgresLog, Failure> {
    let log = PostgresLog::new(db, outbox.log_url.expose())?.named(&outbox.section.log.name)?;
    Ok(log.with_names(&outbox.table_names()?))
}

fn of_place(place: &Place) -> Result<PostgresLog, CommandError> {
    of(&place.outbox, place.store.connection().clone()).map_err(CommandError::configuration)
}

async fn asked(place: &Place) -> Result<SlotStatus, CommandError> {
    let log = of_place(place)?;
    place.ask(log.status()).await
}

fn log_of(status: &SlotStatus) -> String {
    format!("the log {}", status.name)
}

fn plan_of(change: &'static str, status: SlotStatus, effects: &[&str]) -> Plan {
    let log = log_of(&status);
    let state = format!("the log is {}", LogRow::of(status).state());
    let effects = effects.iter().map(|effect| (*effect).to_owned());
    Plan::new(change, log, std::iter::once(state).chain(effects).collect())
}

/// Log findings for `outbox doctor`; none without a log, unless the file requires a log.
/// `as_relay`: whether the login needs the rights of a relay.
pub(in crate::commands) async fn findings(
    place: &Place,
    as_relay: bool,
) -> Result<Vec<Diagnosis>, CommandError> {
    let wants = place.outbox.section.log.read;
    if !wants && place.store.connection().get_database_backend() != DbBackend::Postgres {
        return Ok(Vec::new());
    }
    let log = of_place(place)?;
    let status = place.ask(log.status()).await?;
    if !wants && !is_there(&status) {
        return Ok(Vec::new());
    }
    let found = |state, seen: String, needed: &str, next: Next| {
        Diagnosis::new(Check::Log, state, (status.name.as_str(), seen), needed, next)
    };
    let mut findings: Vec<Diagnosis> = log_row::fault(&status)
        .map(|fault| {
            found(
                fault.state,
                fault.what,
                "a log that one relay reads, or none",
                fault.next,
            )
        })
        .into_iter()
        .collect();
    let check = async {
        match as_relay {
            true => log.check().await,
            false => Ok(()),
        }
    };
    match tokio::time::timeout(place.timeout, check).await {
        Ok(Err(error)) => findings.push(found(
            State::Stuck,
            describe(&error),
            "the parts that `outbox relay log init` creates, and logical replication",
            Next::and_advice("outbox doctor", "after the cause is removed"),
        )),
        Ok(Ok(())) if !status.is_on && wants => findings.push(found(
            State::Stuck,
            "the log is off, and the file has `log.read = true`".to_owned(),
            "a log that is set up: its relay does not start without it",
            "outbox relay log init".into(),
        )),
        _ => {}
    }
    if status.is_on {
        for warning in place.ask(log.preflight()).await.unwrap_or_default() {
            findings.push(found(
                State::Degraded,
                warning.seen,
                "a setting that neither fills the disk nor invalidates the slot early",
                Next::advice(warning.repair),
            ));
        }
    }
    Ok(findings)
}

/// `None` if the log was never set up or the database has no log.
pub(in crate::commands) async fn row_of(place: &Place) -> Result<Option<LogRow>, CommandError> {
    if place.store.connection().get_database_backend() != DbBackend::Postgres {
        return Ok(None);
    }
    let status = asked(place).await?;
    Ok(is_there(&status).then(|| LogRow::of(status)))
}

/// Number of a span's logged messages that may be unpublished; 0 without log support.
pub(in crate::commands) async fn undecided_between(
    place: &Place,
    from: OffsetDateTime,
    until: OffsetDateTime,
) -> Result<u64, CommandError> {
    if place.store.connection().get_database_backend() != DbBackend::Postgres {
        return Ok(0);
    }
    place.ask(of_place(place)?.undecided_between(from, until)).await
}
