//! Pages of consumer dead letters: groups, and the letters of a group.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use outbox::core::OutboxReader;
use outbox::inbox::{DeadLetterSelection, DeadLetters};
use serde::Deserialize;

use crate::admin::web::Dashboard;
use crate::admin::web::filter::{given, storable};
use crate::admin::web::layout;
use crate::admin::web::visit::{Page, Problem, Visit, link};
use crate::admin::words::{at_least, with_commas};
use crate::admin::{Command, GroupFingerprint, LetterRow, group_letters, read_letters};

const LETTERS_MAX: usize = 100_000;
const PAGE: usize = 50;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::admin::web) struct Of {
    consumer: String,
    fingerprint: String,
}

fn fingerprint(text: &str) -> Result<Option<GroupFingerprint>, Problem> {
    let parsed = given(text).map(str::parse).transpose();
    parsed.map_err(|_| Problem::Malformed("invalid fingerprint: write 16 hexadecimal digits".to_owned()))
}

fn of_consumer(consumer: &str) -> Result<DeadLetterSelection, Problem> {
    storable(consumer)?;
    Ok(given(consumer).map_or_else(DeadLetterSelection::all, DeadLetterSelection::consumer))
}

fn letters<S>(app: &Dashboard<S>) -> Result<&DeadLetters, Problem> {
    let letters = app.letters.as_ref();
    letters.ok_or_else(|| {
        Problem::NotFound("this dashboard has no access to the inboxes of its consumers".to_owned())
    })
}

pub(in crate::admin::web) async fn list<S: OutboxReader>(
    State(app): State<Arc<Dashboard<S>>>,
    visit: Visit,
    Query(of): Query<Of>,
) -> Response {
    let made = make_list(&app, &of).await;
    visit.respond(made)
}

async fn make_list<S>(app: &Dashboard<S>, of: &Of) -> Result<Page, Problem> {
    let selection = of_consumer(&of.consumer)?;
    let letters = match fingerprint(&of.fingerprint)? {
        Some(group) => of_group(app, of, &selection, group).await?,
        None => all_groups(app, &selection).await?,
    };
    let body = html! {
        (letters)
        p {
            "Dead letters of the outbox itself, which never reached the stream, are "
            a href=(link("/messages", &[("status", "dead")])) { "messages with the status dead" } "."
        }
    };
    Ok(Page::new("Dead letters of consumers", body))
}

async fn all_groups<S>(app: &Dashboard<S>, selection: &DeadLetterSelection) -> Result<Markup, Problem> {
    let read = read_letters(letters(app)?, selection, None, LETTERS_MAX);
    let (rows, is_complete) = app.ask(read).await?;
    let groups = group_letters(&rows);
    let body = html! {
        @if groups.is_empty() { p { "No dead letters of consumers." } } @else { (layout::table("Dead letters by cause", &groups)) }
        @if !is_complete { p { "There are more: only the oldest " (with_commas(LETTERS_MAX as u64)) " were read." } }
    };
    Ok(body)
}

async fn of_group<S>(
    app: &Dashboard<S>,
    of: &Of,
    selection: &DeadLetterSelection,
    group: GroupFingerprint,
) -> Result<Markup, Problem> {
    let read = read_letters(letters(app)?, selection, Some(group), LETTERS_MAX);
    let (rows, is_complete) = app.ask(read).await?;
    let count = rows.len() as u64;
    let total = if is_complete {
        with_commas(count)
    } else {
        at_least(count)
    };
    let shown: Vec<&LetterRow> = rows.iter().take(PAGE).collect();
    let fingerprint = group.to_string();
    let command = |command: &'static str| {
        let command = Command::from(command).option("--group", group);
        match given(&of.consumer) {
            Some(consumer) => command.option("--consumer", consumer),
            None => command,
        }
    };
    let commands = ["outbox dead-letters retry", "outbox dead-letters discard"].map(command);
    let list = command("outbox dead-letters list").to_string();
    let body = html! {
        p.sentence { (total) " dead letters of the group " code { (fingerprint) } "." }
        @if !rows.is_empty() {
            p { @for command in &commands { (layout::command(command)) " " } }
            (layout::table("Dead letters, oldest first", shown.iter().copied()))
            @if rows.len() > shown.len() { p { "These are the oldest " (PAGE) ". All: " code { (list) } } }
        }
    };
    Ok(body)
}
