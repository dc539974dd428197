//! The overview: how the outbox stands in a sentence, what is wrong, and the numbers behind it.

use axum::response::Response;
use maud::{Markup, html};
use serde::Serialize;
use time::OffsetDateTime;

use crate::web::chart::{Chart, numbers};
use crate::web::history::Point;
use crate::web::sampler::{Sample, latest};
use crate::web::visit::{Page, Problem, Visit};
use crate::web::{layout, pages};
use crate::words::counted;
use crate::{Prospect, State, Subject};

pub(in crate::web) async fn get(visit: Visit) -> Response {
    let made = make(&visit).await;
    visit.respond(made)
}

async fn make(visit: &Visit) -> Result<Page, Problem> {
    let sample = latest(&visit.app).await?;
    let mut page = Page::new("Overview", &*sample, body(visit, &sample));
    page.is_live = true;
    Ok(page)
}

/// The values that the page shows live, as texts: what the server writes into it, and what the script replaces there.
#[derive(Debug, Serialize)]
pub(super) struct Values {
    pub(super) state: &'static str,
    sentence: String,
    pending: String,
    waiting: String,
    oldest: String,
    dead: String,
    halted: String,
    blocked: String,
    relays: String,
    partitions: String,
    /// Names what is wrong without its numbers, so that the page is made again only if something else is wrong.
    reasons: String,
}

impl Values {
    pub(super) fn new(sample: &Sample) -> Self {
        let status = &sample.status;
        let backlog = &status.backlog;
        let count = crate::BacklogCounts::text;
        let key = |reason: &crate::Reason| format!("{} {}", reason.state.as_str(), reason.next.line());
        Self {
            state: status.state.as_str(),
            sentence: sentence(sample),
            pending: backlog.pending_text(),
            waiting: count(backlog.waiting),
            oldest: layout::any(backlog.oldest_unpublished.map(layout::duration)),
            dead: count(backlog.dead_letters),
            halted: count(backlog.halted_aggregates),
            blocked: count(backlog.blocked_aggregates),
            relays: status.relays.alive.to_string(),
            partitions: format!("{} of {}", status.partitions.owned, status.partitions.all),
            reasons: status.reasons.iter().map(key).collect::<Vec<_>>().join("; "),
        }
    }
}

/// How it stands: the worst that is wrong, or what is going on.
fn sentence(sample: &Sample) -> String {
    let status = &sample.status;
    match status.reasons.as_slice() {
        [] => {
            let pending = match status.backlog.pending {
                1 => "1 message is".to_owned(),
                _ => format!("{} messages are", status.backlog.pending_text()),
            };
            format!("Nothing is wrong; {pending} to be published.")
        }
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

fn body(visit: &Visit, sample: &Sample) -> Markup {
    let values = Values::new(sample);
    let counts = [
        ("pending", "To be published", &values.pending),
        ("waiting", "Of those, waiting", &values.waiting),
        ("oldest", "Oldest that is due", &values.oldest),
        ("dead", "Dead letters", &values.dead),
        ("halted", "Halted aggregates", &values.halted),
        ("blocked", "Blocked aggregates", &values.blocked),
        ("relays", "Relays alive", &values.relays),
        ("partitions", "Partitions owned", &values.partitions),
    ];
    let relays = sample.status.relays;
    let pauses = &sample.status.pauses;
    html! {
        @if !pauses.is_empty() { div.paused { (pages::pauses::table(visit, pauses)) } }
        p.sentence role="status" data-reasons=(values.reasons) {
            span class={ "state " (values.state) } data-state data-value="state" { (values.state) }
            " " span data-value="sentence" { (values.sentence) }
        }
        (layout::reasons(visit, &sample.status.reasons))
        dl.counts {
            @for (name, title, value) in counts {
                div { dt { (title) } dd data-value=(name) { (value) } }
            }
        }
        div data-fresh {
            (charts(sample))
            (forecast(visit, sample))
            h2 { "Consumers" }
            (pages::consumers::table(visit, sample))
            h2 { "Relays" }
            p {
                (counted(relays.alive.into(), "relay is alive", "relays are alive")) ": "
                (relays.fit) " fit, " (relays.unproven) " unproven, " (relays.trying) " trying, " (relays.ailing) " ailing. "
                a href=(visit.link("/relays", &[])) { "Relays and partitions" }
            }
            (log(visit, sample))
            p.quiet {
                "Read at " (layout::time(sample.sampled_at)) " UTC."
                @if let Some(first) = sample.history.first() {
                    " This process has sampled since " (layout::time(first.at)) " UTC; it keeps an hour."
                }
            }
        }
    }
}

/// The log of a log relay, if there is one.
fn log(visit: &Visit, sample: &Sample) -> Markup {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "–".to_owned(), |bytes| format!("{bytes} bytes"));
    html! {
        @if let Some(error) = &sample.log_error { (layout::not_seen(visit, &format!("the log: {error}"))) }
        @if let Some(log) = &sample.log {
            h2 { "The log" }
            dl.facts {
                dt { "New messages" } dd { @if log.is_on { "are the log's" } @else { "are the table's: the log is off" } }
                dt { "Slot" } dd {
                    code { (log.name) }
                    @match (log.exists, log.is_read) {
                        (false, _) => " is missing",
                        (true, true) => " is read by a relay",
                        (true, false) => " is read by nobody",
                    }
                }
                @if let Some(stored) = log.stored {
                    dt { "Decided up to" } dd {
                        "position " span.number { (stored) }
                        @if let Some(ago) = log.stored_ago { ", stored " (layout::duration(ago)) " ago" }
                    }
                }
                dt { "May not be published" } dd {
                    (counted(log.undecided, "message", "messages"))
                    @if let Some(oldest) = log.oldest_undecided { ", the oldest recorded " (layout::duration(oldest)) " ago" }
                }
                dt { "Behind what is decided" } dd { (bytes(log.behind_bytes)) }
                dt { "Kept of the database's disk" } dd {
                    (bytes(log.retained_bytes))
                    @if let Some(safe) = log.safe_bytes { "; given up after " (safe) " more" }
                }
            }
        }
    }
}

/// The last hour as lines.
fn charts(sample: &Sample) -> Markup {
    let values = |value: fn(&Point) -> Option<f64>| -> Vec<(OffsetDateTime, Option<f64>)> {
        let points = sample.history.iter();
        points.map(|point| (point.at, value(point))).collect()
    };
    let throughput = values(|point| point.per_second);
    let latency = values(|point| point.latency.map(|latency| latency.as_secs_f64() * 1000.0));
    let pending = values(|point| Some(numbers::of(point.pending)));
    let charts = [
        (
            "chart-throughput",
            "Onto the stream per second",
            numbers::plain as fn(f64) -> String,
            throughput,
        ),
        ("chart-latency", "From commit to stream", numbers::millis, latency),
        ("chart-pending", "To be published", numbers::plain, pending),
    ];
    html! {
        h2 { "The last hour" }
        div.charts {
            @for (id, title, text, values) in &charts {
                (Chart { id, title, text: *text, values }.draw(sample.sampled_at))
            }
        }
    }
}

/// What is to come.
fn forecast(visit: &Visit, sample: &Sample) -> Markup {
    let row = |prospect: &Prospect| {
        let state = if prospect.outlook.is_bad() {
            State::Degraded
        } else {
            State::Well
        };
        let about = match prospect.subject {
            Subject::Backlog => "Outbox".to_owned(),
            Subject::Stream => "Stream".to_owned(),
            Subject::Consumer | Subject::Expiry => format!("Consumer {}", prospect.name),
        };
        html! {
            th scope="row" { (about) }
            td { span class={ "state " (state.as_str()) } { (prospect.outlook.as_str()) } }
            td.number { (layout::any(prospect.within.map(layout::duration))) }
            td { (prospect.what) " " (layout::next(visit, &prospect.next)) }
        }
    };
    let rows: Vec<Markup> = sample.forecast.prospects.iter().map(row).collect();
    html! {
        h2 { "Can it wait until morning?" }
        @if rows.is_empty() { p { "Nothing to foresee yet." } } @else {
            (layout::table("If it goes on like this, what ends first at the top", &["About", "It", "Within", "What"], &rows))
        }
        (pages::consumers::forecast_note(sample))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
