//! `outbox relays`, `outbox partitions` and `outbox blocked`: who publishes, who owns what, and which aggregates wait.

use clap::Args;
use outbox_admin::{BlockedRow, PartitionRow, RelayRow, quoted};

use super::arguments::{LimitArguments, PlaceArguments};
use super::place::Place;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Column, Print, say, say_next};

/// Arguments of `outbox relays`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct RelaysCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
}

impl RelaysCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let rows = place.ask(outbox_admin::relays(&place.store)).await?;
        output::many(self.place.output, &rows)?;
        if rows.iter().any(|row| row.is_alive) {
            return Ok(Outcome::Well);
        }
        say(
            "no relay is alive: start the service whose program runs it, or `outbox relay run` with the login of a relay",
        );
        say_next("outbox doctor");
        // What died has left partitions, which nobody takes until somebody starts a relay.
        Ok(match rows.is_empty() {
            true => Outcome::NothingMatched,
            false => Outcome::Stuck,
        })
    }
}

/// Arguments of `outbox partitions`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct PartitionsCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Only partitions without an owner.
    #[arg(long)]
    pub unowned: bool,
}

impl PartitionsCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let mut rows = place.ask(outbox_admin::partitions(&place.store)).await?;
        if self.unowned {
            rows.retain(|row| row.owner.is_none());
        }
        output::many(self.place.output, &rows)?;
        if rows.is_empty() {
            say("each partition has an owner");
            return Ok(Outcome::NothingMatched);
        }
        Ok(Outcome::Well)
    }
}

/// Arguments of `outbox blocked`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct BlockedCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Only aggregates that wait for an operator.
    #[arg(long)]
    pub halted: bool,
    /// How many.
    #[command(flatten)]
    pub limit: LimitArguments,
}

impl BlockedCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let limit = self.limit.limit;
        let mut rows = place.ask(outbox_admin::blocked(&place.store, limit)).await?;
        let is_cut = rows.len() == limit.get() as usize;
        if self.halted {
            // They come first, so that the limit cuts none of them off before others.
            rows.retain(|row| row.halted);
        }
        output::many(self.place.output, &rows)?;
        if is_cut {
            say("there may be more: `--limit`");
        }
        let Some(first) = rows.first() else {
            say("no aggregate is blocked");
            return Ok(Outcome::NothingMatched);
        };
        say_next(format!("outbox why {}", quoted(&first.name())));
        Ok(Outcome::Well)
    }
}

impl Print for RelayRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("relay", |row| row.owner.to_string()),
        Column::new("name", |row| text::any(row.name.as_deref())),
        Column::new("says", |row| row.says().to_owned()),
        Column::new("partitions", |row| row.partitions.to_string()),
        Column::new("started", |row| text::any(row.started_at.map(text::time))),
        Column::new("stream", |row| text::any(row.stream.as_deref())),
        Column::new("source", |row| text::any(row.source.as_deref())),
        Column::new("error", |row| row.error.clone().unwrap_or_default()),
        Column::wide("error_class", |row| text::any(row.error_class)),
        Column::wide("failing_for", |row| {
            text::any(row.failing_for.map(text::duration))
        }),
        Column::wide("subjects", |row| text::any(row.subjects.as_deref())),
        Column::wide("mode", |row| text::any(row.mode)),
        Column::wide("retention", |row| text::any(row.retention.as_deref())),
        Column::wide("version", |row| text::any(row.version.as_deref())),
        Column::wide("expires_in", |row| text::duration(row.expires_in)),
    ];

    fn name(&self) -> String {
        self.owner.to_string()
    }
}

impl Print for PartitionRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("partition", |row| row.partition.to_string()),
        Column::new("relay", |row| text::any(row.owner)),
        Column::new("expires_in", |row| text::any(row.expires_in.map(text::duration))),
        Column::wide("epoch", |row| row.epoch.to_string()),
    ];

    fn name(&self) -> String {
        self.partition.to_string()
    }
}

impl Print for BlockedRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("aggregate", Print::name),
        Column::new("halted", |row| text::yes(row.halted)),
        Column::new("ends_in", |row| text::any(row.blocked_for.map(text::duration))),
        Column::new("halted_by", |row| text::any(row.halted_by)),
        Column::new("error", |row| row.error.clone().unwrap_or_default()),
    ];

    fn name(&self) -> String {
        format!("{}/{}", self.aggregate_type, self.aggregate_id)
    }
}
