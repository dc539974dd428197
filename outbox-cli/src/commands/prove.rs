//! `outbox prove`: compares outbox, stream and inboxes over a time span. Outboxes of the file with
//! the same stream are read for their inboxes.
//!
//! Invariant: the command only reads, with bounded memory.

use std::fmt::Write as _;

use crate::admin::{ConsumerFloor, Findings, Proof, ProofRequest, RowsKept, Verdict, answered, input};
use clap::Args;
use outbox::inbox::EventOutcomes;
use time::OffsetDateTime;

use super::arguments::PlaceArguments;
use super::place::Place;
use super::{stream, text};
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Print, plain, say};

/// Arguments of `outbox prove`.
#[derive(Debug, Clone, Args)]
pub struct ProveCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Messages recorded since this time: `24h` ago, a date, or a time by RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = input::time)]
    pub since: OffsetDateTime,
    /// Messages recorded before this time. Messages of a transaction that is open for longer are
    /// not included.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = input::time)]
    pub until: OffsetDateTime,
    /// Only this consumer; otherwise all durable consumers of the stream. May be repeated.
    #[arg(long = "consumer", value_name = "NAME")]
    pub consumers: Vec<String>,
    /// Most ids of each finding.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
}

impl ProveCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        if self.since >= self.until {
            return Err(CommandError::configuration(
                "the span is empty: `--since` is not before `--until`, which is a minute ago if it is not given",
            ));
        }
        let place = Place::open(&self.place).await?;
        let publisher = place.publisher().await.map_err(CommandError::failed)?;
        let inboxes = self.inboxes(&place).await?;
        let kept = rows_kept(&place).or_registered(&place.store);
        let request = ProofRequest {
            rows_kept: place.ask(kept).await?,
            shown: self.limit,
            stream: Some(place.outbox.section.stream.name.clone()),
            ..ProofRequest::new(self.since, self.until)
        };
        let floors = async || answered(place.timeout, self.floors(&place)).await;
        let proving = crate::admin::prove(&place.store, &publisher, &inboxes, floors, &request);
        let proof = place.carry_out(proving).await?;
        output::one(self.place.output, &proof)?;
        if proof.outbox.committed == 0 && proof.verdict == Verdict::CannotTell {
            say("the outbox has no message of this span");
            return Ok(Outcome::NothingMatched);
        }
        Ok(match proof.verdict {
            Verdict::Balanced => Outcome::Done,
            Verdict::NotBalanced => Outcome::Stuck,
            Verdict::CannotTell => Outcome::Degraded,
        })
    }

    async fn inboxes(&self, place: &Place) -> Result<Vec<EventOutcomes>, CommandError> {
        let mut inboxes = Vec::new();
        for other in Place::open_all_with_stream_of(place, &self.place.file).await? {
            let names = other.outbox.table_names().map_err(CommandError::configuration)?;
            inboxes.push(EventOutcomes::new(other.store.connection().clone()).with_names(names));
        }
        Ok(inboxes)
    }

    async fn floors(&self, place: &Place) -> Result<Vec<ConsumerFloor>, String> {
        let client = place.client().await.map_err(|error| error.to_string())?;
        let consumers = stream::durables(place, client).await?;
        let mut floors: Vec<ConsumerFloor> = consumers
            .into_iter()
            .map(|info| {
                // An idle consumer's ack floor stays at the last message that matches its filters.
                let is_done = info.num_pending == 0 && info.num_ack_pending == 0;
                let floor = if is_done {
                    u64::MAX
                } else {
                    info.ack_floor.stream_sequence
                };
                ConsumerFloor {
                    consumer: info.name,
                    floor,
                }
            })
            .filter(|floor| self.consumers.is_empty() || self.consumers.contains(&floor.consumer))
            .collect();
        floors.sort_by(|one, other| one.consumer.cmp(&other.consumer));
        let known = |name: &&String| floors.iter().any(|floor| floor.consumer == **name);
        match self.consumers.iter().find(|name| !known(name)) {
            Some(name) => Err(format!("the stream has no durable consumer `{}`", plain(name))),
            None => Ok(floors),
        }
    }
}

/// The time from which the outbox keeps all rows, by `retention` in the file.
pub(super) fn rows_kept(place: &Place) -> RowsKept {
    RowsKept::of(place.outbox.section.relay.retention, OffsetDateTime::now_utc())
}

fn named(text: &mut String, what: &str, findings: &Findings) {
    for found in &findings.first {
        let at = found.stream_sequence.map(|sequence| format!(" at {sequence}"));
        let _ = writeln!(text, "    {what} {}{}", found.event_id, at.unwrap_or_default());
    }
    let named = u64::try_from(findings.first.len()).unwrap_or(u64::MAX);
    if findings.count > named {
        let _ = writeln!(
            text,
            "    and {} more; `--limit` lists more",
            findings.count - named
        );
    }
}

impl Print for Proof {
    fn text(&self) -> String {
        let (outbox, stream) = (self.outbox, self.stream);
        let mut text = format!(
            "{}: {} to {}\n",
            self.verdict.as_str(),
            text::time(self.since),
            text::time(self.until)
        );
        let _ = writeln!(
            text,
            "outbox      committed {}: published {}, unpublished {}, dead letters {}, logged {}; replayed {}",
            outbox.committed,
            outbox.published,
            outbox.unpublished,
            outbox.dead_letters,
            outbox.logged,
            outbox.replayed
        );
        let _ = writeln!(
            text,
            "stream      on the stream {}, copies {}, expired {}, unrecorded {}; of other outboxes {}, foreign {}",
            stream.events, stream.copies, stream.expired, stream.unrecorded, stream.of_others, stream.foreign
        );
        for books in &self.consumers {
            let _ = writeln!(
                text,
                "{:<11} handled {}, dead letters {}, failed {}, open {}, passed {}, missing {}",
                plain(&books.consumer),
                books.handled,
                books.dead_letters,
                books.failed,
                books.open,
                books.passed,
                books.missing.count
            );
            named(&mut text, "missing", &books.missing);
        }
        let _ = writeln!(
            text,
            "findings    lost {}, ghosts {}, holes {}, inversions {}",
            self.lost.count, self.ghosts.count, self.holes.count, self.inversions.count
        );
        named(&mut text, "lost", &self.lost);
        named(&mut text, "ghost", &self.ghosts);
        for found in &self.holes.first {
            let _ = writeln!(
                text,
                "    hole {} {}",
                plain(&found.aggregate()),
                found.hole.numbers()
            );
        }
        named(&mut text, "inversion", &self.inversions);
        for reason in &self.reasons {
            let _ = writeln!(text, "- {}", plain(&reason.what));
            text.push_str(&output::next_lines(&reason.next, "  "));
        }
        text
    }
}
