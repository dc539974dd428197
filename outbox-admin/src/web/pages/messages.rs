//! Pages of messages: filtered list and details.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use outbox_core::OutboxReader;

use super::{ROWS_MAX, is_full};
use crate::input::{self, STATUSES};
use crate::web::App;
use crate::web::filter::Filter;
use crate::web::layout;
use crate::web::visit::{Page, Problem, Visit};
use crate::{Explanation, MessageOrAggregate, Question};

pub(in crate::web) async fn list<S: OutboxReader>(
    State(app): State<Arc<App<S>>>,
    visit: Visit,
    Query(filter): Query<Filter>,
) -> Response {
    let made = make_list(&app, &visit, &filter).await;
    visit.respond(made)
}

async fn make_list<S: OutboxReader>(app: &App<S>, visit: &Visit, filter: &Filter) -> Result<Page, Problem> {
    let selection = filter.selection()?;
    let rows = app
        .ask(crate::page(&app.store, &selection, filter.page()?, ROWS_MAX))
        .await?;
    let last = rows.last().filter(|_| is_full(rows.len()));
    let next = last.map(|row| {
        let before = format!("{}.{}", row.row_id, row.id);
        let mut query = filter.fields().to_vec();
        query.push(("before", &before));
        visit.link("/messages", &query)
    });
    let body = html! {
        (form(visit, filter))
        @if rows.is_empty() { p { "No message matches." } } @else { (layout::table(visit, "Messages", &rows)) }
        @if let Some(next) = &next { p { a href=(next) rel="next" { "Next page" } } }
    };
    Ok(Page::new("Messages", body))
}

fn form(visit: &Visit, filter: &Filter) -> Markup {
    html! {
        form.filter method="get" action=(visit.link("/messages", &[])) role="search" {
            div {
                label for="status" { "Status" }
                select id="status" name="status" {
                    option value="" { "any" }
                    @for status in STATUSES {
                        option value=(status.as_str()) selected[filter.status == status.as_str()] { (status.as_str()) }
                    }
                }
            }
            div {
                label for="aggregate" { "Aggregate or type" }
                input id="aggregate" name="aggregate" value=(filter.aggregate) placeholder="order/4711";
            }
            button type="submit" { "Filter" }
        }
    }
}

pub(in crate::web) async fn one<S: OutboxReader>(
    State(app): State<Arc<App<S>>>,
    visit: Visit,
    Path(id): Path<String>,
) -> Response {
    let made = make_one(&app, &visit, &id).await;
    visit.respond(made)
}

async fn make_one<S: OutboxReader>(app: &App<S>, visit: &Visit, id: &str) -> Result<Page, Problem> {
    let id = input::message_id(id).map_err(Problem::Malformed)?;
    let message = app.ask(crate::show(&app.store, id, None)).await?;
    let why = explain(app, &MessageOrAggregate::Message(id)).await?;
    let Some(message) = message else {
        let first = why.findings.first();
        let text = first.map_or_else(|| "message not found".to_owned(), |finding| finding.what.clone());
        return Err(Problem::NotFound(text));
    };
    let body = html! {
        (explanation(visit, &why))
        h2 { "Message" }
        (layout::facts(visit, &message))
    };
    Ok(Page::new(format!("Message {id}"), body))
}

pub(super) const PATIENCE: Duration = Duration::from_secs(2);

pub(super) async fn explain<S: OutboxReader>(
    app: &App<S>,
    of: &MessageOrAggregate,
) -> Result<Explanation, Problem> {
    let question = app.ask(Question::of(&app.store, of)).await?;
    Ok(question.explain(&app.store, &*app.stream, PATIENCE).await)
}

pub(super) fn explanation(visit: &Visit, why: &Explanation) -> Markup {
    html! {
        section aria-label="Why" {
            h2 { "Why" }
            ul.reasons {
                @for finding in &why.findings {
                    li {
                        (layout::state(finding.state)) " " strong { (finding.cause) } ": " (finding.what)
                        @for command in &finding.next { " " (layout::command(visit, command)) }
                        @if let Some(advice) = &finding.advice { " " (advice) }
                    }
                }
            }
            @for unseen in &why.unseen { (layout::not_seen(unseen)) }
        }
    }
}
