//! The dead letters of consumers: grouped by what failed, as a list, and one of them.

use axum::extract::{Path, Query};
use axum::response::Response;
use maud::{Markup, html};
use outbox_inbox::{DeadLetterSelection, DeadLetters};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use crate::web::filter::{given, storable};
use crate::web::layout;
use crate::web::visit::{Page, Problem, Visit};
use crate::{LetterDetail, LetterGroup, LetterRow, group_letters, list_letters, show_letter};

/// Most dead letters that are read for the groups.
const LETTERS_MAX: u32 = 1_000;

/// Which dead letters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::web) struct Of {
    consumer: String,
    fingerprint: String,
}

fn letters(visit: &Visit) -> Result<&DeadLetters, Problem> {
    let letters = visit.app.letters.as_ref();
    letters.ok_or_else(|| {
        Problem::NotFound("this dashboard does not know the inboxes of its consumers".to_owned())
    })
}

pub(in crate::web) async fn list(visit: Visit, Query(of): Query<Of>) -> Response {
    let made = make_list(&visit, &of).await;
    visit.respond(made)
}

async fn make_list(visit: &Visit, of: &Of) -> Result<Page, Problem> {
    let letters = letters(visit)?;
    storable(&of.consumer)?;
    let selection = match given(&of.consumer) {
        Some(consumer) => DeadLetterSelection::consumer(consumer),
        None => DeadLetterSelection::all(),
    };
    let mut rows = visit
        .app
        .ask(list_letters(letters, &selection, LETTERS_MAX))
        .await?;
    let is_cut = rows.len() == LETTERS_MAX as usize;
    let groups = group_letters(&rows);
    let chosen = given(&of.fingerprint);
    if let Some(chosen) = chosen {
        rows.retain(|row| LetterGroup::fingerprint_of(row) == chosen);
    }
    let body = html! {
        @if groups.is_empty() { p { "No consumer has a dead letter here." } }
        @if chosen.is_none() && !groups.is_empty() { (group_table(visit, &groups)) }
        @if chosen.is_some() { (letter_table(visit, &rows)) }
        @if is_cut { p { "There are more: only the oldest " (LETTERS_MAX) " were read." } }
        p {
            "Dead letters of the outbox itself, which never reached the stream, are "
            a href=(visit.link("/messages", &[("status", "dead")])) { "messages with the status dead" } "."
        }
    };
    let data = match chosen {
        Some(_) => json!({ "dead_letters": rows, "is_complete": !is_cut }),
        None => json!({ "groups": groups, "is_complete": !is_cut }),
    };
    Ok(Page::new("Dead letters of consumers", &data, body))
}

fn group_table(visit: &Visit, groups: &[LetterGroup]) -> Markup {
    let row = |group: &LetterGroup| {
        let query = [
            ("consumer", group.consumer.as_str()),
            ("fingerprint", group.fingerprint.as_str()),
        ];
        html! {
            td { (group.dead_letters) }
            td { (group.consumer) }
            td { (layout::any(group.event_type.as_ref())) }
            td { a href=(visit.link("/dead-letters", &query)) { (group.error) } }
            td { (layout::time(group.first_at)) }
            td { (layout::time(group.last_at)) }
        }
    };
    let columns = [
        "Count",
        "Consumer",
        "Event type",
        "Error",
        "First (UTC)",
        "Last (UTC)",
    ];
    let rows: Vec<Markup> = groups.iter().map(row).collect();
    layout::table("Dead letters by what failed", &columns, &rows)
}

fn letter_table(visit: &Visit, rows: &[LetterRow]) -> Markup {
    let row = |row: &LetterRow| {
        html! {
            td { (layout::time(row.dead_lettered_at)) }
            td { (row.consumer) }
            td { (layout::any(row.event_type.as_ref())) }
            td { (aggregate(visit, row)) }
            td { (row.status) }
            td { (row.attempts) }
            td { (row.error) }
            td.id { a href=(visit.link(&format!("/dead-letters/{}", row.id), &[])) { (row.id) } }
        }
    };
    let columns = [
        "Dead since (UTC)",
        "Consumer",
        "Event type",
        "Aggregate",
        "Status",
        "Attempts",
        "Error",
        "Dead letter",
    ];
    let rows: Vec<Markup> = rows.iter().map(row).collect();
    layout::table("Dead letters, oldest first", &columns, &rows)
}

fn aggregate(visit: &Visit, row: &LetterRow) -> Markup {
    match (&row.aggregate_type, &row.aggregate_id) {
        (Some(aggregate_type), Some(id)) => layout::aggregate(visit, aggregate_type, id),
        _ => html! { "–" },
    }
}

pub(in crate::web) async fn one(visit: Visit, Path(id): Path<String>) -> Response {
    let made = make_one(&visit, id.strip_suffix(".json").unwrap_or(&id)).await;
    visit.respond(made)
}

async fn make_one(visit: &Visit, id: &str) -> Result<Page, Problem> {
    let letters = letters(visit)?;
    let id = Uuid::parse_str(id);
    let id =
        id.map_err(|_| Problem::Malformed("this is no key of a dead letter; it is a UUID".to_owned()))?;
    let shown = visit.access.sees_payloads().then_some(&visit.app.shown);
    let letter = visit.app.ask(show_letter(letters, id, shown)).await?;
    let gone = || Problem::NotFound("it is gone: it was handled, or discarded".to_owned());
    let letter = letter.ok_or_else(gone)?;
    if shown.is_some() {
        tracing::info!(user = visit.access.user(), dead_letter = %id, "a masked payload was shown");
    }
    Ok(Page::new(
        format!("Dead letter {id}"),
        &letter,
        detail(visit, &letter),
    ))
}

fn detail(visit: &Visit, letter: &LetterDetail) -> Markup {
    let row = &letter.row;
    html! {
        p.error { (row.error) }
        dl.facts {
            dt { "Consumer" } dd { (row.consumer) }
            dt { "Status" } dd { (row.status) }
            dt { "Event type" } dd { (layout::any(row.event_type.as_ref())) }
            dt { "Event id" } dd { code { (layout::any(row.event_id)) } }
            dt { "Aggregate" } dd { (aggregate(visit, row)) }
            dt { "Number in it" } dd { (layout::any(row.sequence)) }
            dt { "Subject" } dd { (row.subject) }
            dt { "Stream sequence" } dd { (row.stream_sequence) }
            dt { "Attempts" } dd { (row.attempts) }
            dt { "Dead since (UTC)" } dd { (layout::time(row.dead_lettered_at)) }
            @for (name, value) in &letter.headers { dt { code { (name) } } dd { (value) } }
        }
        @match &letter.payload {
            Some(payload) => pre { (payload) },
            None => p { "Your role (" (visit.access.role().as_str()) ") does not see payloads." },
        }
        p { "Next: " code { (visit.called(format!("outbox dead-letters retry {}", row.id))) } }
    }
}
