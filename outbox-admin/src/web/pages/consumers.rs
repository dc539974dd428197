//! The consumers of the stream: how far each is behind, and their pauses.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use outbox_core::OutboxAudit;
use serde_json::json;

use crate::ConsumerRow;
use crate::web::App;
use crate::web::layout;
use crate::web::sampler::{Sample, latest};
use crate::web::visit::{Page, Problem, Visit};

pub(in crate::web) async fn get<S: OutboxAudit>(State(app): State<Arc<App<S>>>, visit: Visit) -> Response {
    let made = make(&app, &visit).await;
    visit.respond(made)
}

async fn make<S: OutboxAudit>(app: &Arc<App<S>>, visit: &Visit) -> Result<Page, Problem> {
    let sample = latest(app).await?;
    let between = sample.forecast.between;
    let body = html! {
        (table(visit, &sample))
        @for row in sample.consumers.iter().filter(|row| !row.reasons.is_empty()) {
            h2 { (row.consumer) }
            (layout::reasons(visit, &row.reasons))
        }
        p.quiet {
            @if between.is_zero() {
                "A forecast needs two samples, ten seconds apart."
            } @else {
                "Forecasts use the rate of the last " (layout::duration(between)) "."
            }
        }
    };
    let data = json!({
        "consumers": sample.consumers,
        "error": sample.consumers_error,
        "forecast": sample.forecast,
    });
    Ok(Page::new("Consumers", &data, body))
}

/// The forecast of a consumer in words.
fn forecast(sample: &Sample, consumer: &str) -> String {
    let prospects = sample.forecast.prospects.iter();
    let prospects = prospects.filter(|prospect| prospect.name == consumer);
    let words: Vec<&str> = prospects.map(|prospect| prospect.what.as_str()).collect();
    match words.is_empty() {
        true => "–".to_owned(),
        false => words.join("; "),
    }
}

/// All consumers, or why they are not known.
pub(super) fn table(visit: &Visit, sample: &Sample) -> Markup {
    let columns = [
        "Consumer",
        "State",
        "Unprocessed",
        "Ack pending",
        "Oldest",
        "Dead letters",
        "Forecast",
        "Paused",
    ];
    html! {
        @if let Some(error) = &sample.consumers_error {
            p.error { "The consumers are not known: " (error) }
        } @else if sample.consumers.is_empty() {
            p { "The stream has no durable consumer that this program knows of." }
        } @else {
            @let lines: Vec<Markup> = sample.consumers.iter().map(|row| line(visit, sample, row)).collect();
            (layout::table("Consumers of the stream", &columns, &lines))
            @for reason in unseen(sample) {
                (layout::not_seen(&format!("dead letters and pauses of consumers: {reason}")))
            }
        }
    }
}

/// Each reason why something of the consumers is not known, once.
fn unseen(sample: &Sample) -> BTreeSet<&str> {
    let rows = sample.consumers.iter();
    rows.filter_map(|row| row.unseen.as_deref()).collect()
}

fn line(visit: &Visit, sample: &Sample, row: &ConsumerRow) -> Markup {
    let change = |change: &str| visit.link("/change", &[("change", change), ("consumer", &row.consumer)]);
    html! {
        th scope="row" { (row.consumer) }
        td { (layout::state(row.state)) }
        td.number { (layout::any(row.undelivered)) }
        td.number { (layout::any(row.unacknowledged)) }
        td.number { (layout::any(row.oldest.map(layout::duration))) }
        td {
            a href=(visit.link("/dead-letters", &[("consumer", &row.consumer)])) {
                @match row.dead_letters_open {
                    Some(open) => { (open) " open" }
                    None => { "not checked" }
                }
            }
        }
        td { (forecast(sample, &row.consumer)) }
        td {
            @match (&row.paused, row.dead_letters_open) {
                (Some(reason), _) => { (reason) " " a href=(change("resume-consumer")) { "Preview resume" } }
                (None, None) => { "not checked" }
                (None, Some(_)) => { a href=(change("pause-consumer")) { "Preview pause" } }
            }
        }
    }
}
