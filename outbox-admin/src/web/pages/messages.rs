//! Messages: a list that a filter narrows, and one message.

use axum::extract::{Path, Query};
use axum::response::Response;
use maud::{Markup, html};
use outbox_core::MessageStatus;
use outbox_core::headers::TRACEPARENT;
use serde_json::json;

use super::{ROWS_MAX, is_full};
use crate::web::filter::{Filter, STATUSES, message_id};
use crate::web::layout;
use crate::web::source::Subject;
use crate::web::visit::{Page, Problem, Visit};
use crate::{Explanation, MessageDetail, MessageRow, PayloadView};

pub(in crate::web) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Response {
    let made = make_list(&visit, &filter).await;
    visit.respond(made)
}

async fn make_list(visit: &Visit, filter: &Filter) -> Result<Page, Problem> {
    let app = &visit.app;
    let selection = filter.selection()?;
    let rows = app
        .ask(app.outbox.page(&selection, filter.page()?, ROWS_MAX))
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
        @if rows.is_empty() { p { "No message matches." } } @else { (table(visit, &rows)) }
        @if let Some(next) = &next { p { a href=(next) rel="next" { "Next page" } } }
        (actions(visit, filter, &rows))
    };
    let data = json!({ "messages": rows, "next": next });
    Ok(Page::new("Messages", &data, body))
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
                label for="aggregate" { "Aggregate or its type" }
                input id="aggregate" name="aggregate" value=(filter.aggregate) placeholder="order/4711";
            }
            div {
                label for="type" { "Event type" }
                input id="type" name="type" value=(filter.event_type) placeholder="order.placed";
            }
            div {
                label for="since" { "Recorded since" }
                input id="since" name="since" value=(filter.since) placeholder="2h";
            }
            div {
                label for="until" { "Recorded until" }
                input id="until" name="until" value=(filter.until) placeholder="2026-11-20";
            }
            button type="submit" { "Filter" }
        }
    }
}

/// A table of messages.
pub(super) fn table(visit: &Visit, rows: &[MessageRow]) -> Markup {
    let columns = [
        "Recorded (UTC)",
        "Aggregate",
        "No.",
        "Event type",
        "Status",
        "Attempts",
        "Error",
        "Message",
    ];
    let rows: Vec<Markup> = rows.iter().map(|row| line(visit, row)).collect();
    layout::table("Messages", &columns, &rows)
}

fn line(visit: &Visit, row: &MessageRow) -> Markup {
    let id = row.id.to_string();
    html! {
        td { (layout::time(row.recorded_at)) }
        td { (layout::aggregate(visit, &row.aggregate_type, &row.aggregate_id)) }
        td.number { (layout::any(row.sequence)) }
        td { (row.event_type) }
        td { (layout::status(row.status)) @if row.halts { " halts" } }
        td.number { (row.attempts) }
        td { (row.error.as_deref().unwrap_or_default()) }
        td.id { a href=(visit.link(&format!("/messages/{id}"), &[])) { (id) } }
    }
}

/// What can be done with all messages of a list of dead letters.
fn actions(visit: &Visit, filter: &Filter, rows: &[MessageRow]) -> Markup {
    let is_dead = filter.status == MessageStatus::Dead.as_str() && !rows.is_empty();
    let link = |change: &'static str| {
        let mut query = vec![("change", change)];
        query.extend(filter.fields());
        if filter.is_wide() {
            query.push(("all", "yes"));
        }
        visit.link("/change", &query)
    };
    html! {
        @if is_dead {
            h2 { "All dead letters of this list" }
            p {
                a.button href=(link("retry")) { "What would retry do?" }
                a.button href=(link("skip")) { "What would skip do?" }
            }
        }
    }
}

pub(in crate::web) async fn one(visit: Visit, Path(id): Path<String>) -> Response {
    let made = make_one(&visit, id.strip_suffix(".json").unwrap_or(&id)).await;
    visit.respond(made)
}

async fn make_one(visit: &Visit, id: &str) -> Result<Page, Problem> {
    let app = &visit.app;
    let id = message_id(id)?;
    let shown = visit.access.sees_payloads().then_some(&app.shown);
    let message = app.ask(app.outbox.show(id, shown)).await?;
    let why = app
        .ask(app.outbox.why(&*app.stream, &Subject::Message(id)))
        .await?;
    let Some(message) = message else {
        let first = why.findings.first();
        let text = first.map_or_else(
            || "there is no such message".to_owned(),
            |finding| finding.what.clone(),
        );
        return Err(Problem::NotFound(text));
    };
    if shown.is_some() {
        tracing::info!(user = visit.access.user(), message = %id, "a masked payload was shown");
    }
    let body = html! {
        (explanation(visit, &why))
        (details(visit, &message))
        (content(visit, &message))
    };
    let trace = message.content.as_ref().and_then(|content| trace(visit, content));
    let data = json!({ "message": message, "why": why, "trace": trace });
    Ok(Page::new(format!("Message {id}"), &data, body))
}

/// Why something does not arrive, or that it did.
pub(super) fn explanation(visit: &Visit, why: &Explanation) -> Markup {
    html! {
        section aria-label="Why" {
            h2 { "Why" }
            ul.reasons {
                @for finding in &why.findings {
                    li {
                        (layout::state(finding.state)) " " strong { (finding.cause.as_str()) } ": " (finding.what)
                        @for command in &finding.next { " " (layout::command(visit, command)) }
                        @if let Some(advice) = &finding.advice { " " (visit.prose(advice)) }
                    }
                }
            }
            @for unseen in &why.unseen { (layout::not_seen(visit, unseen)) }
        }
    }
}

fn details(visit: &Visit, message: &MessageDetail) -> Markup {
    let row = &message.row;
    let id = row.id.to_string();
    let aggregate = format!("{}/{}", row.aggregate_type, row.aggregate_id);
    html! {
        h2 { "Message" }
        dl.facts {
            dt { "Status" } dd { (layout::status(row.status)) @if row.halts { ", halts its aggregate" } }
            dt { "Aggregate" } dd { (layout::aggregate(visit, &row.aggregate_type, &row.aggregate_id)) }
            dt { "Number in it" } dd { (layout::any(row.sequence)) }
            dt { "Event type" } dd { (row.event_type) }
            dt { "Event id" } dd { code { (row.event_id) } }
            dt { "Recorded (UTC)" } dd { (layout::time(row.recorded_at)) }
            @if let Some(time) = row.published_at { dt { "Published (UTC)" } dd { (layout::time(time)) } }
            @if let Some(left) = message.delayed_for { dt { "Delayed for" } dd { (layout::duration(left)) } }
            dt { "Attempts" } dd { (row.attempts) " (" (row.failures) " failures of any kind)" }
            @if let Some(error) = &row.error { dt { "Last error" } dd { (error) } }
            dt { "Partition" } dd { (message.partition) }
        }
        p { a.button href=(visit.link("/timeline", &[("of", &aggregate)])) { "Timeline of its aggregate" } }
        @if row.status == MessageStatus::Dead {
            p {
                a.button href=(visit.link("/change", &[("change", "retry"), ("id", &id)])) { "What would retry do?" }
                @if row.halts {
                    a.button href=(visit.link("/change", &[("change", "skip"), ("id", &id)])) { "What would skip do?" }
                }
            }
        }
    }
}

/// The address of the message's trace, if the dashboard knows where traces are and the message has one.
fn trace(visit: &Visit, content: &PayloadView) -> Option<String> {
    let traceparent = content.headers.get(TRACEPARENT)?;
    visit.app.traces.as_ref()?.of(traceparent)
}

fn content(visit: &Visit, message: &MessageDetail) -> Markup {
    html! {
        h2 { "Content" }
        @if let Some(damage) = &message.damage { p.error { "The row cannot be read: " (damage) } }
        @if let Some(content) = &message.content {
            dl.facts {
                dt { "Version" } dd { (content.event_version) }
                dt { "Content type" } dd { (content.content_type) }
                dt { "Size" } dd { (content.payload_bytes) " bytes" }
                @if let Some(subject) = &content.subject { dt { "Subject" } dd { (subject) } }
                @for (name, value) in &content.headers { dt { code { (name) } } dd { (value) } }
                @if let Some(link) = trace(visit, content) {
                    dt { "Trace" } dd { a href=(link) rel="noreferrer" { "Show its trace" } }
                }
            }
            @match &content.payload {
                Some(payload) => pre { (payload) },
                None => p { "Your role (" (visit.access.role().as_str()) ") does not see payloads." },
            }
        }
    }
}
