//! `outbox doctor`: checks database, stream, consumers and settings, with repairs.
//!
//! An unavailable server is a finding and does not stop the other checks.

mod denied;
mod nats;

use std::fmt::Write as _;
use std::time::Duration;

use crate::admin::doctor::{
    Check, Diagnosis, Examination, PauseFacts, Wanted, database_facts, of_database, of_leases, of_pauses,
    of_relays, of_setup,
};
use crate::admin::{Next, State, failing};
use clap::Args;
use outbox::core::{OutboxReader as _, OutboxStore as _, Retention, SetupKind, SetupProblem};
use outbox::sea_orm::{DatabaseAnswer, reach};
use serde::Serialize;
use time::OffsetDateTime;

use super::advice::Advice;
use super::arguments::PlaceArguments;
use super::place::Place;
use super::relay::log;
use super::sessions::Sessions;
use crate::failure::{CommandError, Outcome};
use crate::invocation;
use crate::output::{self, Print, plain};

/// Arguments of `outbox doctor`.
#[derive(Debug, Clone, Args)]
pub struct DoctorCommand {
    /// The outbox to check; without `--outbox`, all outboxes of the file.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Skip the rights of a relay, for logins of other roles.
    #[arg(long)]
    pub viewer: bool,
}

async fn examine(place: &Place, as_relay: bool) -> Result<Examination, CommandError> {
    let mut found = Examination::default();
    look_at_database(place, as_relay, &mut found).await?;
    let retention = match place.outbox.section.relay.retention {
        Retention::Keep => None,
        Retention::KeepFor(time) => Some(time),
        _ => Some(Duration::ZERO),
    };
    nats::look(place, &Wanted { retention }, as_relay, &mut found).await;
    found
        .findings
        .sort_by_key(|finding| std::cmp::Reverse(finding.state));
    Ok(found)
}

impl DoctorCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let mut rows = Vec::new();
        for place in Place::open_all(&self.place, Sessions::Writing).await? {
            let found = examine(&place, !self.viewer).await?;
            rows.push(DoctorRow {
                outbox: place.outbox.name().to_owned(),
                stream: place.outbox.section.stream.name.clone(),
                state: found
                    .findings
                    .first()
                    .map_or(State::Healthy, |finding| finding.state),
                not_checked: found.not_checked(),
                findings: found.findings,
                unseen: found.unseen,
            });
        }
        if rows.len() > 1 {
            for DoctorRow { outbox, findings, .. } in &mut rows {
                for finding in findings {
                    invocation::name_outbox(&mut finding.next, outbox);
                }
            }
        }
        output::many(self.place.output, &rows)?;
        let worst = rows.iter().map(|row| row.state).max();
        Ok(worst.unwrap_or(State::Healthy).into())
    }
}

/// Finding for a database error that prevents all further reads.
fn away(advice: &Advice) -> Diagnosis {
    let (check, needed) = match advice.answer {
        Some(DatabaseAnswer::ColumnMissing) => (
            Check::Tables,
            "the tables of this version, in `schema` with `prefix`",
        ),
        _ => (Check::Database, "a reachable database"),
    };
    let next = match advice.next.is_empty() {
        true => Next::advice("correct DATABASE_URL, or start the server"),
        false => advice.next.clone(),
    };
    Diagnosis::failed(check, advice.seen(), needed, next)
}

async fn asked<T, E: std::error::Error + 'static>(
    place: &Place,
    question: impl Future<Output = Result<T, E>>,
) -> Result<T, Advice> {
    match tokio::time::timeout(place.timeout, question).await {
        Ok(answer) => answer.map_err(|error| place.advice(&error)),
        Err(_) => Err(Advice::unknown(format!("no answer within {:?}", place.timeout))),
    }
}

async fn look_at_database(
    place: &Place,
    as_relay: bool,
    found: &mut Examination,
) -> Result<(), CommandError> {
    if let Err(advice) = asked(place, Box::pin(reach(place.store.connection()))).await {
        found.findings.push(away(&advice));
        return Ok(());
    }
    if only_reads(place).await {
        found.findings.push(Diagnosis::failed(
            Check::DatabaseSetting,
            "new sessions are read-only: `default_transaction_read_only` or `read_only` is on",
            "off: relays renew leases and settle messages",
            Next::advice("turn the setting off for the database or the server"),
        ));
    }
    if as_relay {
        look_as_relay(place, found).await;
    }
    if found
        .findings
        .iter()
        .any(|finding| matches!(finding.check, Check::Database | Check::Tables))
    {
        return Ok(());
    }
    look_at_relays(place, as_relay, found).await;
    look_at_messages(place, found).await;
    match log::findings(place, as_relay).await {
        Ok(findings) => {
            found.made(Check::Log..=Check::Log);
            found.findings.extend(findings);
        }
        Err(failure) => found.unseen.push(format!(
            "the log: {failure}; `outbox print grants --log` prints the missing right"
        )),
    }
    look_at_server(place, found).await
}

/// Whether new sessions are read-only; an error counts as no.
pub(super) async fn only_reads(place: &Place) -> bool {
    let asked = crate::admin::doctor::only_reads(place.store.connection());
    matches!(tokio::time::timeout(place.timeout, asked).await, Ok(Ok(true)))
}

async fn look_as_relay(place: &Place, found: &mut Examination) {
    let deletes = place.outbox.section.relay.retention != Retention::Keep;
    match tokio::time::timeout(place.timeout, place.store.preflight(deletes)).await {
        Ok(checked) => {
            if checked.is_ok() {
                found.made(Check::Database..=Check::RowSecurity);
            }
            let reads_log = place.outbox.section.log.read;
            let is_news = |warning: &SetupProblem| !reads_log || warning.kind != SetupKind::LeftToLog;
            let checked = checked.map(|warnings| warnings.into_iter().filter(is_news).collect());
            found.findings.extend(of_setup(checked));
        }
        Err(_) => {
            let silent = Advice::unknown(format!("no answer within {:?}", place.timeout));
            found.findings.push(away(&silent));
        }
    }
}

async fn look_at_relays(place: &Place, as_relay: bool, found: &mut Examination) {
    let registry = async {
        let relays = place.store.relays().await?;
        let expired = place.store.expired_relays().await?;
        let leases = place.store.partitions().await?;
        Ok::<_, outbox::core::StoreError>((relays, expired, leases))
    };
    match asked(place, registry).await {
        Ok((relays, expired, leases)) => {
            found.made(Check::Database..=Check::Database);
            found.made(Check::Relays..=Check::Leases);
            found.findings.extend(of_leases(&leases));
            found.findings.extend(of_relays(&relays, &expired, as_relay));
        }
        Err(advice) => found.findings.push(away(&advice)),
    }
}

async fn look_at_server(place: &Place, found: &mut Examination) -> Result<(), CommandError> {
    let names = place.outbox.table_names().map_err(CommandError::configuration)?;
    let db = place.store.connection();
    let backend = db.get_database_backend();
    let (messages, aggregates) = (names.messages(backend), names.aggregates(backend));
    match asked(place, database_facts(db, &messages, &aggregates)).await {
        Ok(facts) => {
            found.made(Check::Clock..=Check::Clock);
            if facts.unseen.is_empty() {
                found.made(Check::Numbers..=Check::Numbers);
            }
            found.findings.extend(of_database(&facts));
            found.unseen.extend(facts.unseen);
        }
        Err(advice) => found.findings.push(away(&advice)),
    }
    Ok(())
}

/// The database has answered before, so an error here means a missing right or table.
async fn look_at_messages(place: &Place, found: &mut Examination) {
    match asked(place, place.store.held()).await {
        Ok(held) => {
            let facts = PauseFacts {
                pauses: held.pauses,
                unknown_types: held.unknown_types,
                without_pause: held.without_pause,
            };
            found.made(Check::Pauses..=Check::Pauses);
            let now = OffsetDateTime::now_utc();
            found.findings.extend(of_pauses(&facts, now));
        }
        Err(advice) => found.unseen.push(format!("pauses: {advice}")),
    }
    let stream = &place.outbox.section.stream.name;
    match asked(place, failing(&place.store)).await {
        Ok(failing) => {
            let finding = failing.and_then(|failing| failing.diagnosis(stream));
            found.findings.extend(finding);
        }
        Err(advice) => found.unseen.push(format!("failing messages: {advice}")),
    }
}

#[derive(Debug, Serialize)]
struct DoctorRow {
    outbox: String,
    stream: String,
    state: State,
    findings: Vec<Diagnosis>,
    unseen: Vec<String>,
    not_checked: Vec<Check>,
}

impl Print for DoctorRow {
    fn text(&self) -> String {
        let mut text = format!("{} -> {}: {}\n", self.outbox, self.stream, self.state);
        for finding in &self.findings {
            let subject = match finding.subject.as_str() {
                "" => String::new(),
                subject => format!(" {subject}"),
            };
            let _ = writeln!(
                text,
                "  {:<8}  {}{}: {}",
                finding.state,
                finding.check,
                plain(&subject),
                plain(&finding.seen)
            );
            let _ = writeln!(text, "            needed: {}", plain(&finding.needed));
            text.push_str(&output::next_lines(&finding.next, "            "));
        }
        for unseen in &self.unseen {
            let _ = writeln!(text, "  not checked: {}", plain(unseen));
        }
        if !self.not_checked.is_empty() {
            let checks: Vec<_> = self.not_checked.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "  not checked: {}", checks.join(", "));
        }
        text
    }
}
