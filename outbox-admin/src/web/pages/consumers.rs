//! The consumers of the stream: how far each is behind.

use std::collections::BTreeSet;

use axum::response::Response;
use maud::{Markup, html};
use serde_json::json;

use crate::ConsumerRow;
use crate::web::layout;
use crate::web::sampler::{Sample, latest};
use crate::web::visit::{Page, Problem, Visit};

pub(in crate::web) async fn get(visit: Visit) -> Response {
    let made = make(&visit).await;
    visit.respond(made)
}

async fn make(visit: &Visit) -> Result<Page, Problem> {
    let sample = latest(&visit.app).await?;
    let body = html! {
        (table(visit, &sample))
        @for row in sample.consumers.iter().filter(|row| !row.reasons.is_empty()) {
            h2 { (row.consumer) }
            (layout::reasons(visit, &row.reasons))
        }
        (forecast_note(&sample))
    };
    let data = json!({
        "consumers": sample.consumers,
        "error": sample.consumers_error,
        "forecast": sample.forecast,
    });
    Ok(Page::new("Consumers", &data, body))
}

/// How old the look is by which forecasts are made.
pub(super) fn forecast_note(sample: &Sample) -> Markup {
    let between = sample.forecast.between;
    html! {
        p.quiet {
            @if between.is_zero() {
                "A forecast needs two looks, ten seconds apart."
            } @else {
                "Forecasts go on as the last " (layout::duration(between)) " did."
            }
        }
    }
}

/// What is to come for a consumer, in words.
fn forecast(sample: &Sample, consumer: &str) -> String {
    let of_it = sample.forecast.prospects.iter();
    let of_it = of_it.filter(|prospect| prospect.name == consumer);
    let words: Vec<&str> = of_it.map(|prospect| prospect.what.as_str()).collect();
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
        "Not delivered",
        "Not acknowledged",
        "Oldest",
        "Dead letters",
        "Forecast",
        "Paused",
    ];
    html! {
        @if let Some(error) = &sample.consumers_error {
            p.error { "The consumers are not known: " (visit.prose(error)) }
        } @else if sample.consumers.is_empty() {
            p { "The stream has no durable consumer that this program knows of." }
        } @else {
            @let lines: Vec<Markup> = sample.consumers.iter().map(|row| line(visit, sample, row)).collect();
            (layout::table("Consumers of the stream", &columns, &lines))
            @for reason in unseen(sample) {
                (layout::not_seen(visit, &format!("dead letters and pauses of consumers: {reason}")))
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
                (Some(reason), _) => { (reason) }
                (None, None) => { "not checked" }
                (None, Some(_)) => {}
            }
        }
    }
}
