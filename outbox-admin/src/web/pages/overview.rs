//! The overview: the state of the outbox in a sentence, what is wrong, and the numbers behind it.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::response::Response;
use maud::{Markup, html};
use outbox_core::OutboxAudit;

use crate::web::App;
use crate::web::sampler::{Sample, latest};
use crate::web::visit::{Page, Problem, Visit};
use crate::web::{layout, pages};
use crate::words::counted;
use crate::{BacklogCounts, PauseRow, RelayRow, Status};

pub(in crate::web) async fn get<S: OutboxAudit>(
    Extract(app): Extract<Arc<App<S>>>,
    visit: Visit,
) -> Response {
    let made = make(&app, &visit).await;
    visit.respond(made)
}

async fn make<S: OutboxAudit>(app: &Arc<App<S>>, visit: &Visit) -> Result<Page, Problem> {
    let sample = latest(app).await?;
    let may_pause = app.changes.store.is_some() && visit.access.may_change();
    let body = html! {
        div data-fresh { (present(visit, &sample)) }
        @if may_pause { (pause_form(visit)) }
    };
    let mut page = Page::new("Overview", &*sample, body);
    page.is_live = true;
    Ok(page)
}

/// The worst fault, or what is in progress.
fn sentence(status: &Status) -> String {
    match status.reasons.as_slice() {
        [] => format!(
            "Nothing is wrong; pending messages: {}.",
            status.backlog.pending_text()
        ),
        [first] => format!("{}.", capital(&first.what)),
        [first, others @ ..] => {
            let more = counted(others.len() as u64, "more thing is", "more things are");
            format!("{}; {more} wrong.", capital(&first.what))
        }
    }
}

fn capital(text: &str) -> String {
    let mut rest = text.chars();
    match rest.next() {
        Some(first) => first.to_uppercase().chain(rest).collect(),
        None => String::new(),
    }
}

fn present(visit: &Visit, sample: &Sample) -> Markup {
    let (status, count) = (&sample.status, BacklogCounts::text);
    let backlog = &status.backlog;
    let partitions = format!("{} of {}", status.partitions.owned, status.partitions.all);
    let counts = [
        ("Pending", backlog.pending_text()),
        ("Deferred", count(backlog.waiting)),
        (
            "Oldest due",
            layout::any(backlog.oldest_unpublished.map(layout::duration)),
        ),
        ("Dead letters", count(backlog.dead_letters)),
        ("Halted aggregates", count(backlog.halted_aggregates)),
        ("Blocked aggregates", count(backlog.blocked_aggregates)),
        ("Relays alive", status.relays.alive.to_string()),
        ("Partitions owned", partitions),
    ];
    html! {
        @if !status.pauses.is_empty() { div.paused { (pauses(visit, &status.pauses)) } }
        p.sentence role="status" { (layout::state(status.state)) " " (sentence(status)) }
        (layout::reasons(visit, &status.reasons))
        dl.counts { @for (title, value) in counts { div { dt { (title) } dd { (value) } } } }
        h2 { "Consumers" }
        (pages::consumers::table(visit, sample))
        h2 { "Relays" }
        @if sample.relays.is_empty() { p { "No relay is known." } } @else { (relays(&sample.relays)) }
        @if let Some(error) = &sample.log_error { (layout::not_seen(&format!("the log: {error}"))) }
        p.quiet { "Read at " (layout::time(sample.sampled_at)) " UTC." }
    }
}

fn relays(relays: &[RelayRow]) -> Markup {
    let row = |row: &RelayRow| {
        html! {
            td.id { (row.owner) }
            td { (layout::any(row.name.as_deref())) }
            td { (row.says()) }
            td.number { (row.partitions) }
            td { @if let Some(time) = row.started_at { (layout::time(time)) } }
            td { (layout::any(row.error.as_deref())) }
        }
    };
    let columns = ["Relay", "Name", "Health", "Partitions", "Started (UTC)", "Error"];
    let rows: Vec<Markup> = relays.iter().map(row).collect();
    layout::table("Live relays, then dead relays", &columns, &rows)
}

/// The present pauses, with the preview of the end of each.
fn pauses(visit: &Visit, pauses: &[PauseRow]) -> Markup {
    let row = |row: &PauseRow| {
        let aggregate_type = row.aggregate_type.as_deref().unwrap_or_default();
        let query = [("change", "unpause"), ("aggregate_type", aggregate_type)];
        html! {
            th scope="row" { (row.scope()) }
            td { (row.by) }
            td { (layout::time(row.since)) }
            td { (row.reason) }
            td { @match row.ends_in { Some(left) => { "in " (layout::duration(left)) }, None => "when an operator ends it" } }
            td { a href=(visit.link("/change", &query)) { "Preview resume" } }
        }
    };
    let columns = ["Paused", "By", "Since (UTC)", "Why", "Ends", "Next"];
    let rows: Vec<Markup> = pauses.iter().map(row).collect();
    layout::table("Publishing is paused", &columns, &rows)
}

fn pause_form(visit: &Visit) -> Markup {
    html! {
        h2 { "Pause publishing" }
        form.filter method="get" action=(visit.link("/change", &[])) {
            input type="hidden" name="change" value="pause";
            div {
                label for="aggregate_type" { "Aggregate type (empty: all messages)" }
                input id="aggregate_type" name="aggregate_type" placeholder="order";
            }
            div {
                label for="lasts" { "Duration (optional)" }
                input id="lasts" name="lasts" placeholder="2h";
            }
            button type="submit" { "Preview pause" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    #[test]
    fn a_sentence_begins_with_a_capital_whatever_its_first_letter_is() {
        assert_eq!(capital("no relay is alive"), "No relay is alive");
        assert_eq!(capital("élan"), "Élan");
        assert_eq!(capital("3 of 4"), "3 of 4");
        assert_eq!(capital(""), "");
    }

    #[test]
    fn states_are_words_that_the_style_sheet_knows() {
        let style = include_str!("../assets/style.css");
        for state in [State::Well, State::Degraded, State::Stuck] {
            assert!(
                style.contains(&format!(".{} {{ color:", state.as_str())),
                "{state:?}"
            );
        }
    }
}
