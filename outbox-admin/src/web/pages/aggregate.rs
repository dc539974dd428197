//! An aggregate: why its events do not arrive, its block, and its messages.

use axum::extract::Query;
use axum::response::Response;
use maud::html;
use outbox_core::Selection;
use serde::Deserialize;
use serde_json::json;

use super::{ROWS_MAX, is_full, messages};
use crate::web::source::Subject;
use crate::web::visit::{Page, Problem, Visit};
use crate::web::{filter, layout};

/// Which aggregate. Its id may hold any character, so it is no part of the path.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::web) struct Of {
    of: String,
    after: String,
}

pub(in crate::web) async fn get(visit: Visit, Query(of): Query<Of>) -> Response {
    let made = make(&visit, &of).await;
    visit.respond(made)
}

async fn make(visit: &Visit, of: &Of) -> Result<Page, Problem> {
    let app = &visit.app;
    let aggregate = filter::aggregate(&of.of)?;
    let selection = filter::after(Selection::all(), &of.after)?;
    let subject = Subject::Aggregate(aggregate.clone());
    let why = app.ask(app.outbox.why(&*app.stream, &subject)).await?;
    let block = app.ask(app.outbox.preview_resume(&aggregate)).await?;
    let (rows, unseen) = app
        .ask(app.outbox.of_aggregate(&aggregate, &selection, ROWS_MAX))
        .await?;
    let last = rows.last().filter(|_| is_full(rows.len()));
    let next = last.map(|row| {
        let after = row.row_id.to_string();
        visit.link("/aggregate", &[("of", &of.of), ("after", &after)])
    });
    let resume = visit.link("/change", &[("change", "resume"), ("aggregate", &of.of)]);
    let body = html! {
        (messages::explanation(visit, &why))
        @if let Some(left) = block.blocked_for {
            p {
                "It is blocked for " (layout::duration(left)) ". "
                a.button href=(resume) { "What would resume do?" }
            }
        }
        p { a.button href=(visit.link("/timeline", &[("of", &of.of)])) { "Timeline" } }
        h2 { "Messages" }
        @if rows.is_empty() { p { "The outbox holds no message of it." } } @else { (messages::table(visit, &rows)) }
        @if let Some(next) = &next { p { a href=(next) rel="next" { "Next page" } } }
        @for unseen in &unseen { (layout::not_seen(visit, unseen)) }
    };
    let data = json!({ "why": why, "block": block, "messages": rows, "next": next, "unseen": unseen });
    Ok(Page::new(aggregate.to_string(), &data, body))
}
