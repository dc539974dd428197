//! Observes an outbox twice and extrapolates.
//!
//! A forecast omits parts that cannot be read.

use std::fmt::Write as _;

use outbox::core::OutboxStore as _;
use outbox_admin::{ConsumerSeen, Forecast, Prospect, Seen, forecast};
use tokio::time::Instant;

use super::arguments::ForecastArguments;
use super::place::Place;
use super::{stream, text};
use crate::failure::CommandError;
use crate::output::{self, plain};

pub(super) async fn foresee(
    place: &Place,
    arguments: ForecastArguments,
) -> Result<Option<Forecast>, CommandError> {
    let Some(between) = arguments.forecast else {
        return Ok(None);
    };
    let (begun, earlier) = (Instant::now(), look(place).await?);
    tokio::time::sleep(between).await;
    let passed = begun.elapsed();
    let now = look(place).await?;
    Ok(Some(forecast(&earlier, &now, passed)))
}

async fn look(place: &Place) -> Result<Seen, CommandError> {
    let backlog = place.ask(place.store.backlog()).await?;
    let mut seen = Seen {
        pending: Some((backlog.pending_estimate, backlog.is_exact())),
        ..Seen::default()
    };
    // Without NATS or inbox tables, the backlog alone is forecast.
    if let Ok(client) = place.client().await {
        let filled = stream::filled(place, client.clone()).await.ok();
        seen.max_age = filled.and_then(|stream| stream.max_age);
        let (rows, _) = stream::rows(place, client).await.unwrap_or_default();
        seen.consumers = rows.iter().filter_map(ConsumerSeen::of).collect();
    }
    Ok(seen)
}

pub(super) fn lines(forecast: &Forecast) -> String {
    let mut text = format!("at the rate of the last {}:\n", text::duration(forecast.between));
    for prospect in &forecast.prospects {
        let _ = writeln!(text, "  {}", line(prospect));
        text.push_str(&output::next_lines(&prospect.next, "    "));
    }
    text
}

fn line(prospect: &Prospect) -> String {
    match prospect.name.as_str() {
        "" => plain(&prospect.what),
        name => format!("{}: {}", plain(name), plain(&prospect.what)),
    }
}
