//! The overview page: state, problems and counts.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State as Extract;
use axum::response::Response;
use maud::{Markup, html};
use outbox_core::OutboxReader;

use crate::web::App;
use crate::web::layout;
use crate::web::sampler::{Sample, latest};
use crate::web::visit::{Page, Problem, Visit};
use crate::words::counted;
use crate::{BacklogCounts, ListedConsumer, Status};

pub(in crate::web) async fn get<S: OutboxReader>(
    Extract(app): Extract<Arc<App<S>>>,
    visit: Visit,
) -> Response {
    let made = make(&app, &visit).await;
    visit.respond(made)
}

async fn make<S: OutboxReader>(app: &Arc<App<S>>, visit: &Visit) -> Result<Page, Problem> {
    let sample = latest(app).await?;
    let body = html! { div data-fresh { (present(visit, &sample)) } };
    let mut page = Page::new("Overview", body);
    page.is_live = true;
    Ok(page)
}

fn sentence(status: &Status) -> String {
    match status.reasons.as_slice() {
        [] => format!("Healthy; pending messages: {}.", status.backlog.pending_text()),
        [first] => format!("{}.", layout::capital(&first.what)),
        [first, others @ ..] => {
            let more = counted(others.len() as u64, "more problem", "more problems");
            format!("{}; {more}.", layout::capital(&first.what))
        }
    }
}

fn present(visit: &Visit, sample: &Sample) -> Markup {
    let (status, count) = (&sample.status, BacklogCounts::text);
    let backlog = &status.backlog;
    let partitions = format!("{} of {}", status.partitions.owned, status.partitions.all);
    let counts = [
        ("Pending", backlog.pending_text()),
        ("Deferred", count(backlog.deferred)),
        (
            "Oldest due",
            backlog
                .oldest_unpublished
                .map_or_else(|| "–".to_owned(), layout::duration),
        ),
        ("Dead letters", count(backlog.dead_letters)),
        ("Halted aggregates", count(backlog.halted_aggregates)),
        ("Blocked aggregates", count(backlog.blocked_aggregates)),
        ("Relays alive", status.relays.alive.to_string()),
        ("Partitions owned", partitions),
    ];
    html! {
        @if !status.pauses.is_empty() { div.paused { (layout::table(visit, "Publishing is paused", &status.pauses)) } }
        p.sentence role="status" { (layout::state(status.state)) " " (sentence(status)) }
        (layout::reasons(visit, &status.reasons))
        dl.counts { @for (title, value) in counts { div { dt { (title) } dd { (value) } } } }
        h2 { "Consumers" }
        (consumers(visit, sample))
        h2 { "Relays" }
        @if sample.relays.is_empty() { p { "No relay is registered." } } @else { (layout::table(visit, "Live relays, then dead relays", &sample.relays)) }
        @if let Some(error) = &sample.log_error { (layout::not_seen(&format!("the log: {error}"))) }
        p.quiet { "Read at " (layout::time(sample.sampled_at)) "." }
    }
}

fn consumers(visit: &Visit, sample: &Sample) -> Markup {
    if let Some(error) = &sample.consumers_error {
        return html! { p.error { "Consumers not checked: " (error) } };
    }
    if sample.consumers.is_empty() {
        return html! { p { "The stream has no durable consumer." } };
    }
    let rows = sample.consumers.iter().cloned();
    let rows: Vec<ListedConsumer> = rows
        .map(|row| ListedConsumer::new(row, Some(&sample.forecast)))
        .collect();
    let unseen: BTreeSet<&str> = rows
        .iter()
        .filter_map(|listed| listed.row.unseen.as_deref())
        .collect();
    html! {
        (layout::table(visit, "Consumers of the stream", &rows))
        @for reason in unseen {
            (layout::not_seen(&format!("dead letters and pauses of consumers: {reason}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    #[test]
    fn sentence_starts_with_a_capital() {
        assert_eq!(layout::capital("no relay is alive"), "No relay is alive");
        assert_eq!(layout::capital("élan"), "Élan");
        assert_eq!(layout::capital("3 of 4"), "3 of 4");
        assert_eq!(layout::capital(""), "");
    }

    #[test]
    fn style_sheet_has_every_state() {
        let style = include_str!("../assets/style.css");
        for state in [State::Healthy, State::Degraded, State::Stuck] {
            assert!(style.contains(&format!(".{} {{ color:", state)), "{state:?}");
        }
    }
}
