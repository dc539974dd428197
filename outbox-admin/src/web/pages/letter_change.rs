//! Changes of dead letters of consumers: what one would do, and then the change itself.
//!
//! Invariants: an address alone changes nothing. The form of a preview holds the selection and the token. A change continues if its browser disconnects, and
//! its operation names the user who has logged in.

use axum::Form;
use axum::extract::Query;
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use outbox_core::Intent;
use outbox_inbox::{DeadLetterSelection, DeadLetters};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use crate::web::filter::{given, storable};
use crate::web::layout;
use crate::web::pages::letters::fingerprint;
use crate::web::visit::{Page, Problem, Visit};
use crate::words::counted;
use crate::{
    GroupFingerprint, LetterChange, LetterRow, carry_out_by_key, letters_of_group, preview_of_count,
};

/// What is to be done, as an address or a form describes it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(in crate::web) struct Asked {
    change: String,
    /// The key of one dead letter; otherwise a group is meant.
    id: String,
    consumer: String,
    fingerprint: String,
    /// How many of the group, the oldest ones; empty for all.
    first: String,
    /// Only in a form, as the token.
    reason: String,
    token: String,
}

/// Which dead letters.
#[derive(Debug, Clone, Copy)]
enum Of {
    One(Uuid),
    Group(GroupFingerprint, usize),
}

impl Asked {
    fn change(&self) -> Result<LetterChange, Problem> {
        match self.change.as_str() {
            "retry" => Ok(LetterChange::Retry),
            "cancel-retry" => Ok(LetterChange::CancelRetry),
            "discard" => Ok(LetterChange::Discard),
            _ => {
                let text = "there is no such change here; it is retry, cancel-retry or discard";
                Err(Problem::Malformed(text.to_owned()))
            }
        }
    }

    fn of(&self) -> Result<Of, Problem> {
        if let Some(id) = given(&self.id) {
            let malformed =
                |_| Problem::Malformed("this is no key of a dead letter; it is a UUID".to_owned());
            return Ok(Of::One(Uuid::parse_str(id).map_err(malformed)?));
        }
        let Some(group) = fingerprint(&self.fingerprint)? else {
            let text = "nothing is selected; name a dead letter or the fingerprint of a group";
            return Err(Problem::Malformed(text.to_owned()));
        };
        let malformed = |_| Problem::Malformed("`first` is no number".to_owned());
        let first = given(&self.first).map(|first| first.parse().map_err(malformed));
        Ok(Of::Group(group, first.transpose()?.unwrap_or(usize::MAX)))
    }

    fn selection(&self) -> Result<DeadLetterSelection, Problem> {
        storable(&self.consumer)?;
        Ok(match given(&self.consumer) {
            Some(consumer) => DeadLetterSelection::consumer(consumer),
            None => DeadLetterSelection::all(),
        })
    }

    /// The dead letters that the change takes.
    async fn taken(&self, visit: &Visit, letters: &DeadLetters) -> Result<Vec<LetterRow>, Problem> {
        let change = self.change()?;
        let selection = match self.of()? {
            Of::Group(group, most) => {
                let selection = change.narrow(&self.selection()?);
                let of_group = letters_of_group(letters, &selection, group, most);
                return Ok(visit.app.ask(of_group).await?.0);
            }
            Of::One(id) => change.narrow(&DeadLetterSelection::ids([id])),
        };
        visit.app.ask(crate::list_letters(letters, &selection, 1)).await
    }
}

pub(in crate::web) async fn preview(visit: Visit, Query(asked): Query<Asked>) -> Response {
    let made = make_preview(&visit, &asked).await;
    visit.respond(made)
}

async fn make_preview(visit: &Visit, asked: &Asked) -> Result<Page, Problem> {
    let change = asked.change()?;
    let rows = asked.taken(visit, super::letters::letters(visit)?).await?;
    let preview = preview_of_count(change, rows.len() as u64);
    let letters = counted(preview.dead_letters, "dead letter", "dead letters");
    let body = html! {
        p.sentence {
            @if rows.is_empty() { "Nothing: no dead letter matches." } @else { "It would " (change.as_str()) " " (letters) "." }
        }
        ul { @for effect in &preview.effects { li { (visit.prose(effect)) } } }
        @if let Some(first) = rows.first() {
            dl.facts {
                dt { "Consumer" } dd { (first.consumer) }
                dt { "Event type" } dd { (layout::any(first.event_type.as_ref())) }
                dt { "Error of the oldest" } dd { (first.error) }
            }
            (form(visit, asked, &letters))
        }
    };
    Ok(Page::new(
        format!("Preview of {}", change.as_str()),
        &preview,
        body,
    ))
}

/// The form that makes the change, for users who may.
fn form(visit: &Visit, asked: &Asked, letters: &str) -> Markup {
    if visit.app.letter_changes.is_none() {
        return html! { p { "This dashboard only reads. The command line makes changes." } };
    }
    if !visit.access.may_change() {
        return html! { p { "Your role (" (visit.access.role().as_str()) ") may not make changes." } };
    }
    let fields = [
        ("change", &asked.change),
        ("id", &asked.id),
        ("consumer", &asked.consumer),
        ("fingerprint", &asked.fingerprint),
        ("first", &asked.first),
    ];
    html! {
        form method="post" action=(visit.link("/letter-change", &[])) {
            (visit.token_field())
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            p {
                label for="reason" { "Why (for the audit)" } " "
                input id="reason" name="reason" maxlength="1000" size="40";
            }
            p { button.do type="submit" { (asked.change) " " (letters) } }
        }
    }
}

pub(in crate::web) async fn apply(visit: Visit, Form(asked): Form<Asked>) -> Response {
    match make_change(&visit, &asked).await {
        // So that loading the page again does not send the form again.
        Ok((_, Some(path))) if !visit.wants_json => Redirect::to(&visit.link(&path, &[])).into_response(),
        made => visit.respond(made.map(|(page, _)| page)),
    }
}

/// Makes a change. Also returns the path of its operation, if something was changed.
async fn make_change(visit: &Visit, asked: &Asked) -> Result<(Page, Option<String>), Problem> {
    visit.check_token(&asked.token)?;
    let letters = visit.app.letter_changes.clone();
    let letters = letters.ok_or_else(|| Problem::Forbidden("this dashboard only reads".to_owned()))?;
    let change = asked.change()?;
    let rows = asked.taken(visit, &letters).await?;
    let keys: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
    let intent = Intent::of(visit.access.user()).because(&asked.reason);
    let operation = match asked.of()? {
        Of::Group(group, _) => change.operation_on_group(&asked.selection()?, group, intent),
        Of::One(id) => change.operation(&DeadLetterSelection::ids([id]), intent),
    };
    // Dropping the request drops only the wait. A crash leaves the transactions that were completed.
    let changing = async move { carry_out_by_key(&letters, change, &keys, &operation).await };
    let done = tokio::spawn(changing).await;
    let done = done.map_err(|error| Problem::Failed(error.to_string()))??;
    let id = done.operation.map(|id| id.to_string());
    tracing::info!(
        user = visit.access.user(),
        change = change.as_str(),
        changed = done.dead_letters,
        operation = id,
        "dead letters of a consumer were changed"
    );
    let changed = counted(
        done.dead_letters,
        "dead letter was changed.",
        "dead letters were changed.",
    );
    let body = html! {
        p.sentence role="status" { (changed) }
        p { a href=(visit.link("/dead-letters", &[])) { "Dead letters of consumers" } }
    };
    let data = json!({ "change": change.as_str(), "changed": done.dead_letters, "operation": id });
    Ok((
        Page::new("Done", &data, body),
        id.map(|id| format!("/operations/{id}")),
    ))
}
