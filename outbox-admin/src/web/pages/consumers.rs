//! The consumers of the stream: how far each is behind.

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
        @if let Ok(rows) = &sample.consumers {
            @for row in rows.iter().filter(|row| !row.reasons.is_empty()) {
                h2 { (row.consumer) }
                (layout::reasons(visit, &row.reasons))
            }
        }
    };
    let data = match &sample.consumers {
        Ok(rows) => json!({ "consumers": rows }),
        Err(error) => json!({ "consumers": [], "error": error }),
    };
    Ok(Page::new("Consumers", &data, body))
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
        "Paused",
    ];
    html! {
        @match &sample.consumers {
            Err(error) => p.error { "The consumers are not known: " (error) },
            Ok(rows) if rows.is_empty() => p { "The stream has no durable consumer that this program knows of." },
            Ok(rows) => {
                @let lines: Vec<Markup> = rows.iter().map(|row| line(visit, row)).collect();
                (layout::table("Consumers of the stream", &columns, &lines))
            },
        }
    }
}

fn line(visit: &Visit, row: &ConsumerRow) -> Markup {
    html! {
        th scope="row" { (row.consumer) }
        td { (layout::state(row.state)) }
        td { (layout::any(row.undelivered)) }
        td { (layout::any(row.unacknowledged)) }
        td { (layout::any(row.oldest.map(layout::duration))) }
        td {
            a href=(visit.link("/dead-letters", &[("consumer", &row.consumer)])) {
                (row.dead_letters_open) " open"
            }
        }
        td { (row.paused.as_deref().unwrap_or_default()) }
    }
}
