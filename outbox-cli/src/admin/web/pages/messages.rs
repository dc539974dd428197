//! Pages of messages: filtered list and details.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use outbox::core::OutboxReader;

use super::{ROWS_MAX, is_full};
use crate::admin::input::{self, STATUSES};
use crate::admin::web::Dashboard;
use crate::admin::web::filter::Filter;
use crate::admin::web::layout;
use crate::admin::web::visit::{Page, Problem, Visit, link};
use crate::admin::{Explanation, MessageOrAggregate, Question};

pub(in crate::admin::web) async fn list<S: OutboxReader>(
    State(app): State<Arc<Dashboard<S>>>,
    visit: Visit,
    Query(filter): Query<Filter>,
) -> Response {
    let made = make_list(&app, &filter).await;
    visit.respond(made)
}

async fn make_list<S: OutboxReader>(app: &Dashboard<S>, filter: &Filter) -> Result<Page, Problem> {
    let selection = filter.selection()?;
    let rows = app
        .ask(crate::admin::page(
            &app.store,
            &selection,
            filter.page()?,
            ROWS_MAX,
        ))
        .await?;
    let last = rows.last().filter(|_| is_full(rows.len()));
    let next = last.map(|row| {
        let before = format!("{}.{}", row.row_id, row.id);
        let mut query = filter.fields().to_vec();
        query.push(("before", &before));
        link("/messages", &query)
    });
    let body = html! {
        (form(filter))
        @if rows.is_empty() { p { "No message matches." } } @else { (layout::table("Messages", &rows)) }
        @if let Some(next) = &next { p { a href=(next) rel="next" { "Next page" } } }
    };
    Ok(Page::new("Messages", body))
}

fn form(filter: &Filter) -> Markup {
    html! {
        form.filter method="get" action=(link("/messages", &[])) role="search" {
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

pub(in crate::admin::web) async fn one<S: OutboxReader>(
    State(app): State<Arc<Dashboard<S>>>,
    visit: Visit,
    Path(id): Path<String>,
) -> Response {
    let made = make_one(&app, &id).await;
    visit.respond(made)
}

async fn make_one<S: OutboxReader>(app: &Dashboard<S>, id: &str) -> Result<Page, Problem> {
    let id = input::message_id(id).map_err(Problem::Malformed)?;
    let message = app.ask(crate::admin::show(&app.store, id, None)).await?;
    let why = explain(app, &MessageOrAggregate::Message(id)).await?;
    let Some(message) = message else {
        let first = why.findings.first();
        let text = first.map_or_else(|| "message not found".to_owned(), |finding| finding.what.clone());
        return Err(Problem::NotFound(text));
    };
    let body = html! {
        (explanation(&why))
        h2 { "Message" }
        (layout::facts(&message))
    };
    Ok(Page::new(format!("Message {id}"), body))
}

pub(super) const PATIENCE: Duration = Duration::from_secs(2);

pub(super) async fn explain<S: OutboxReader>(
    app: &Dashboard<S>,
    of: &MessageOrAggregate,
) -> Result<Explanation, Problem> {
    let question = app.ask(Question::of(&app.store, of)).await?;
    Ok(question.explain(&app.store, &*app.stream, PATIENCE).await)
}

pub(super) fn explanation(why: &Explanation) -> Markup {
    html! {
        section aria-label="Why" {
            h2 { "Why" }
            ul.reasons {
                @for finding in &why.findings {
                    li {
                        (layout::state(finding.state)) " " strong { (finding.cause) } ": " (finding.what)
                        @for command in &finding.next { " " (layout::command(command)) }
                        @if let Some(advice) = &finding.advice { " " (advice) }
                    }
                }
            }
            @for unseen in &why.unseen { (layout::not_seen(unseen)) }
        }
    }
}
