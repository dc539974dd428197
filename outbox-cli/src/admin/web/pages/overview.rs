//! The overview page: state, problems and counts.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State as Extract;
use axum::response::Response;
use maud::{Markup, html};
use outbox::core::OutboxReader;

use crate::admin::web::Dashboard;
use crate::admin::web::layout;
use crate::admin::web::sampler::{Sample, latest};
use crate::admin::web::visit::{Page, Problem, Visit};
use crate::admin::words::counted;
use crate::admin::{BacklogCounts, Status};

pub(in crate::admin::web) async fn get<S: OutboxReader>(
    Extract(app): Extract<Arc<Dashboard<S>>>,
    visit: Visit,
) -> Response {
    let made = make(&app).await;
    visit.respond(made)
}

async fn make<S: OutboxReader>(app: &Arc<Dashboard<S>>) -> Result<Page, Problem> {
    let sample = latest(app).await?;
    let body = html! { div data-fresh { (present(&sample)) } };
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

fn present(sample: &Sample) -> Markup {
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
        @if !status.pauses.is_empty() { div.paused { (layout::table("Publishing is paused", &status.pauses)) } }
        p.sentence role="status" { (layout::state(status.state)) " " (sentence(status)) }
        (layout::reasons(&status.reasons))
        dl.counts { @for (title, value) in counts { div { dt { (title) } dd { (value) } } } }
        h2 { "Consumers" }
        (consumers(sample))
        h2 { "Relays" }
        @if sample.relays.is_empty() { p { "No relay is registered." } } @else { (layout::table("Live relays, then dead relays", &sample.relays)) }
        @if let Some(error) = &sample.log_error { (layout::not_seen(&format!("the log: {error}"))) }
        p.quiet { "Read at " (layout::time(sample.sampled_at)) "." }
    }
}

fn consumers(sample: &Sample) -> Markup {
    let rows = match &sample.consumers {
        Ok(rows) if rows.is_empty() => return html! { p { "The stream has no durable consumer." } },
        Ok(rows) => rows,
        Err(error) => return html! { p.error { "Consumers not checked: " (error) } },
    };
    let unseen = rows.iter().filter_map(|listed| listed.row.unseen.as_deref());
    let unseen: BTreeSet<&str> = unseen.collect();
    html! {
        (layout::table("Consumers of the stream", rows))
        @for reason in unseen {
            (layout::not_seen(&format!("dead letters and pauses of consumers: {reason}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::State;

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
