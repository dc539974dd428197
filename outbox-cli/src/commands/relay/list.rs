//! `outbox relay list`: live relays, then dead relays with partitions not yet taken.

use clap::Args;

use super::super::arguments::PlaceArguments;
use super::super::place::Place;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, say, say_next};

/// Arguments of `outbox relay list`.
#[derive(Debug, Clone, Args)]
pub struct ListRelaysCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
}

impl ListRelaysCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let rows = place.ask(crate::admin::relays(&place.store)).await?;
        output::list(self.place.output, &rows)?;
        if rows.iter().any(|row| row.is_alive) {
            return Ok(Outcome::Done);
        }
        say("no relay is alive: start the service that runs it, or `outbox relay run` with a relay's login");
        say_next("outbox doctor");
        Ok(match rows.is_empty() {
            true => Outcome::NothingMatched,
            false => Outcome::Stuck,
        })
    }
}
