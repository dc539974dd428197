//! Operations: who has changed what and why, and what became of one.
//!
//! Invariant: nothing here changes anything; an operation that broke off is continued by the command line.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use outbox_core::{OperationFilter, OperationKind, OutboxAudit};
use serde::Deserialize;
use serde_json::json;

use super::{ROWS_MAX, is_full};
use crate::input;
use crate::web::App;
use crate::web::filter::{given, storable};
use crate::web::layout;
use crate::web::visit::{Page, Problem, Visit};
use crate::{list_inbox_operations, list_operations, show_inbox_operation, show_operation};

/// Which operations.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::web) struct Of {
    actor: String,
    kind: String,
    since: String,
    before: String,
}

impl Of {
    fn filter(&self) -> Result<OperationFilter, Problem> {
        for text in [&self.actor, &self.kind] {
            storable(text)?;
        }
        let mut filter = OperationFilter::default();
        filter.actor = given(&self.actor).map(str::to_owned);
        filter.kind = given(&self.kind).map(OperationKind::from);
        filter.since = given(&self.since)
            .map(input::time)
            .transpose()
            .map_err(Problem::Malformed)?;
        filter.before = given(&self.before)
            .map(input::operation_id)
            .transpose()
            .map_err(Problem::Malformed)?;
        Ok(filter)
    }
}

pub(in crate::web) async fn list<S: OutboxAudit>(
    State(app): State<Arc<App<S>>>,
    visit: Visit,
    Query(of): Query<Of>,
) -> Response {
    let made = make_list(&app, &visit, &of).await;
    visit.respond(made)
}

async fn make_list<S: OutboxAudit>(app: &App<S>, visit: &Visit, of: &Of) -> Result<Page, Problem> {
    let filter = of.filter()?;
    let mut rows = app.ask(list_operations(&app.store, &filter, ROWS_MAX)).await?;
    let mut unseen = None;
    if let Some(operations) = &app.inbox_operations {
        match app
            .ask(list_inbox_operations(operations, &filter, ROWS_MAX))
            .await
        {
            Ok(of_inbox) => rows.extend(of_inbox),
            Err(problem) => unseen = Some(format!("operations on consumers: {}", problem.text())),
        }
        // Both lists by the same order, so the first ones of both together are among those that were read.
        rows.sort_by_key(|row| std::cmp::Reverse(row.id));
        rows.truncate(ROWS_MAX.get() as usize);
    }
    let last = rows.last().filter(|_| is_full(rows.len()));
    let next = last.map(|row| {
        let before = row.id.to_string();
        let query = [
            ("actor", of.actor.as_str()),
            ("kind", &of.kind),
            ("since", &of.since),
            ("before", &before),
        ];
        visit.link("/audit", &query)
    });
    let body = html! {
        (form(visit, of))
        @if rows.is_empty() { p { "No operation matches." } } @else { (layout::table(visit, "Operations, the last one first", &rows)) }
        @if let Some(next) = &next { p { a href=(next) rel="next" { "Next page" } } }
        @if let Some(unseen) = &unseen { (layout::not_seen(unseen)) }
    };
    let data = json!({ "operations": rows, "next": next, "unseen": unseen });
    Ok(Page::new("Audit", &data, body))
}

fn form(visit: &Visit, of: &Of) -> Markup {
    html! {
        form.filter method="get" action=(visit.link("/audit", &[])) role="search" {
            div {
                label for="actor" { "Who" }
                input id="actor" name="actor" value=(of.actor);
            }
            div {
                label for="kind" { "What" }
                input id="kind" name="kind" value=(of.kind) placeholder="retry";
            }
            div {
                label for="since" { "Since" }
                input id="since" name="since" value=(of.since) placeholder="7d";
            }
            button type="submit" { "Filter" }
        }
    }
}

pub(in crate::web) async fn one<S: OutboxAudit>(
    State(app): State<Arc<App<S>>>,
    visit: Visit,
    Path(id): Path<String>,
) -> Response {
    let made = make_one(&app, &visit, id.strip_suffix(".json").unwrap_or(&id)).await;
    visit.respond(made)
}

async fn make_one<S: OutboxAudit>(app: &App<S>, visit: &Visit, id: &str) -> Result<Page, Problem> {
    let id = input::operation_id(id).map_err(Problem::Malformed)?;
    let mut detail = app.ask(show_operation(&app.store, id)).await?;
    if let (None, Some(operations), Some(letters)) = (&detail, &app.inbox_operations, &app.letters) {
        detail = app.ask(show_inbox_operation(operations, letters, id)).await?;
    }
    let missing = || {
        Problem::NotFound("there is no such operation; one that changed nothing leaves no trace".to_owned())
    };
    let detail = detail.ok_or_else(missing)?;
    let body = html! {
        p.sentence role="status" { (detail.row.kind) ": " (detail.outcome) "." }
        @if let Some(command) = &detail.next { p { (layout::command(visit, command)) } }
        (layout::facts(visit, &detail))
        @if !detail.names_all { p { "The counts of what became of them are of the first " (detail.named) "." } }
        @if !detail.errors.is_empty() {
            h2 { "Why there are dead letters" }
            ul {
                @for error in &detail.errors { li { (error.messages) " × " (error.error) } }
                @if detail.errors_unlisted > 0 { li { (detail.errors_unlisted) " with other errors" } }
            }
        }
        p { a href=(visit.link("/audit", &[])) { "All operations" } " · " a href=(visit.link("/", &[])) { "Overview" } }
    };
    Ok(Page::new(format!("Operation {id}"), &detail, body))
}
