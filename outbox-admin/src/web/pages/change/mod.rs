//! A change: its preview, and then the change itself. One flow serves messages, pauses, dead letters of consumers and pauses of consumers.
//!
//! Invariants: an address alone changes nothing. The form of a preview holds the fields of the preview and the token, so what is sent is what was previewed. A
//! change continues if its browser disconnects. The operation of a change names the user who has logged in.

mod preview;
mod task;

use std::sync::Arc;

use axum::Form;
use axum::extract::{Query, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use outbox_core::{Intent, OutboxAudit};
use serde_json::json;

use crate::web::App;
use crate::web::layout;
use crate::web::visit::{Page, Problem, Visit};
use crate::words::counted;
use preview::{Preview, previewed};
use task::Asked;

pub(in crate::web) async fn preview<S: OutboxAudit>(
    State(app): State<Arc<App<S>>>,
    visit: Visit,
    Query(asked): Query<Asked>,
) -> Response {
    let made = make_preview(&app, &visit, &asked).await;
    visit.respond(made)
}

async fn make_preview<S: OutboxAudit>(
    app: &Arc<App<S>>,
    visit: &Visit,
    asked: &Asked,
) -> Result<Page, Problem> {
    let task = asked.task()?;
    let Preview {
        sentence,
        effects,
        details,
        unseen,
        data,
        can_be_made,
    } = previewed(app, visit, &task).await?;
    let body = html! {
        p.sentence { (sentence) }
        ul { @for effect in &effects { li { (effect) } } }
        (details)
        @for unseen in &unseen { (layout::not_seen(unseen)) }
        @if can_be_made { (form(visit, asked, task.may_be_made(&app.changes))) }
    };
    let mut page = Page::new(format!("Preview of {}", asked.change), &data, body);
    if let Some(object) = page.data.as_object_mut() {
        object.insert("unseen".to_owned(), json!(unseen));
    }
    Ok(page)
}

/// The form that makes the change, for users who may.
fn form(visit: &Visit, asked: &Asked, is_writable: bool) -> Markup {
    if !is_writable {
        return html! { p { "This dashboard only reads. The command line makes changes." } };
    }
    if !visit.access.may_change() {
        return html! { p { "Your role (" (visit.access.role().as_str()) ") may not make changes." } };
    }
    html! {
        form method="post" action=(visit.link("/change", &[])) {
            (visit.token_field())
            @for (name, value) in asked.fields() { input type="hidden" name=(name) value=(value); }
            p {
                label for="reason" { "Why (for the audit)" } " "
                input id="reason" name="reason" maxlength="1000" size="40";
            }
            p { button.do type="submit" { "Do it: " (asked.change) } }
        }
    }
}

pub(in crate::web) async fn apply<S: OutboxAudit>(
    State(app): State<Arc<App<S>>>,
    visit: Visit,
    Form(asked): Form<Asked>,
) -> Response {
    match make_change(&app, &visit, &asked).await {
        // So that loading the page again does not send the form again.
        Ok((_, Some(operation))) if !visit.wants_json => {
            Redirect::to(&visit.link(&format!("/operations/{operation}"), &[])).into_response()
        }
        made => visit.respond(made.map(|(page, _)| page)),
    }
}

/// Makes a change. Also returns its operation, unless nothing was changed.
async fn make_change<S: OutboxAudit>(
    app: &Arc<App<S>>,
    visit: &Visit,
    asked: &Asked,
) -> Result<(Page, Option<String>), Problem> {
    visit.check_token(&asked.token)?;
    let (user, change) = (visit.access.user(), asked.change.as_str());
    let task = asked.task()?;
    if !task.may_be_made(&app.changes) {
        return Err(Problem::Forbidden("this dashboard only reads".to_owned()));
    }
    tracing::info!(user, change, fields = ?asked.fields(), "a change begins");
    let intent = Intent::of(user).because(&asked.reason);
    let app = app.clone();
    // A crash or an error leaves the completed transactions. Dropping the request drops only the wait.
    let done = tokio::spawn(async move { task.carry_out(&app, intent).await }).await;
    let done = done.map_err(|error| Problem::Failed(error.to_string()))?;
    let done = done.inspect_err(|problem| {
        tracing::warn!(user, change, error = problem.text(), "a change failed");
    })?;
    let operation = done.operation.map(|id| id.to_string());
    tracing::info!(user, change, changed = done.changed, operation, "a change ended");
    let sentence = match done.changed {
        0 => "Nothing was changed: nothing matches any more.".to_owned(),
        changed => counted(changed, "thing was changed.", "things were changed."),
    };
    let body = html! {
        p.sentence role="status" { (sentence) }
        p { a href=(visit.link("/", &[])) { "Overview" } }
    };
    let data = json!({ "change": change, "changed": done.changed, "operation": operation });
    Ok((Page::new("Done", &data, body), operation))
}
