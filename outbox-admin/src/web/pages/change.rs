//! Changes: what one would do, and then the change itself: of dead letters, of back-offs, and of pauses.
//!
//! Invariants: an address alone changes nothing. The form of a preview holds the selection and the token; what is sent is what the preview was of. A change goes
//! on if its browser goes away. The operation of a change names who has logged in.

use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::extract::Query;
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use outbox_core::{Aggregate, Intent, MessageStatus, OperationId, PauseRequest, Selection};
use serde::Deserialize;
use serde_json::json;

use crate::web::filter::{self, Filter};
use crate::web::layout;
use crate::web::pages::causes::{self, Seen};
use crate::web::pages::takers;
use crate::web::source::Outbox;
use crate::web::visit::{Page, Problem, Visit};
use crate::words::counted;
use crate::{Change, PREVIEW_MAX, PauseChanged, PausePreview, Preview, ResumePreview};

/// What is to be done, as an address or a form says it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(in crate::web) struct Asked {
    change: String,
    /// `yes` if nothing narrows the selection, and that is meant.
    all: String,
    id: String,
    status: String,
    aggregate: String,
    #[serde(rename = "type")]
    event_type: String,
    since: String,
    until: String,
    /// Of a pause; empty for all messages.
    aggregate_type: String,
    /// How long a pause lasts; empty: until somebody ends it.
    lasts: String,
    /// Only in a form, as the token.
    reason: String,
    token: String,
}

/// What is to be done, understood.
#[derive(Debug, Clone)]
enum Task {
    Change(Change, Box<Selection>),
    Resume(Aggregate),
    Pause(Option<String>, Option<Duration>),
    Unpause(Option<String>),
}

impl Asked {
    fn filter(&self) -> Filter {
        Filter {
            id: self.id.clone(),
            status: self.status.clone(),
            aggregate: self.aggregate.clone(),
            event_type: self.event_type.clone(),
            since: self.since.clone(),
            until: self.until.clone(),
            ..Filter::default()
        }
    }

    fn paused_type(&self) -> Result<Option<String>, Problem> {
        filter::storable(&self.aggregate_type)?;
        Ok(filter::given(&self.aggregate_type).map(str::to_owned))
    }

    fn task(&self) -> Result<Task, Problem> {
        let change = match self.change.as_str() {
            "retry" => Change::Retry,
            "skip" => Change::Skip,
            "resume" => return Ok(Task::Resume(filter::aggregate(&self.aggregate)?)),
            "pause" => {
                let lasts = filter::given(&self.lasts).map(filter::lasts).transpose()?;
                return Ok(Task::Pause(self.paused_type()?, lasts));
            }
            "unpause" => return Ok(Task::Unpause(self.paused_type()?)),
            _ => {
                let text = "there is no such change here; it is retry, skip, resume, pause or unpause";
                return Err(Problem::Malformed(text.to_owned()));
            }
        };
        let filter = self.filter();
        if filter.is_wide() && self.all != "yes" {
            let text = "nothing is selected; name a message or a filter, or say `all=yes`";
            return Err(Problem::Malformed(text.to_owned()));
        }
        let selection = filter.selection()?.status(MessageStatus::Dead);
        Ok(Task::Change(change, Box::new(selection)))
    }
}

pub(in crate::web) async fn preview(visit: Visit, Query(asked): Query<Asked>) -> Response {
    let made = make_preview(&visit, &asked).await;
    visit.respond(made)
}

async fn make_preview(visit: &Visit, asked: &Asked) -> Result<Page, Problem> {
    let app = &visit.app;
    match asked.task()? {
        Task::Change(change, selection) => {
            let mut preview = app.ask(app.outbox.preview(change, &selection)).await?;
            // At once: a stream that is silent is waited for as long as one question may take.
            let (causes, looked) = tokio::join!(
                causes::of_messages(app, &preview.first),
                takers::look(app, &preview)
            );
            takers::add(&mut preview, looked);
            let unseen = match causes {
                Ok(causes) => {
                    preview.recheck(causes);
                    Vec::new()
                }
                Err(unseen) => vec![unseen],
            };
            let has_effect = preview.messages > 0 || !preview.is_complete;
            let body = html! {
                (describe(visit, &preview))
                @for unseen in &unseen { (layout::not_seen(visit, unseen)) }
                @if has_effect { (form(visit, asked)) }
            };
            let title = format!("What would {} do?", change.as_str());
            Ok(Page::new(
                title,
                &Seen {
                    preview: &preview,
                    unseen: &unseen,
                },
                body,
            ))
        }
        Task::Resume(aggregate) => {
            let preview = app.ask(app.outbox.preview_resume(&aggregate)).await?;
            Ok(of_resume(visit, asked, &aggregate, preview).await)
        }
        Task::Pause(aggregate_type, lasts) => {
            let preview = app.outbox.preview_pause(aggregate_type.as_deref(), lasts);
            let preview = app.ask(preview).await?;
            Ok(of_pause(visit, &preview, form(visit, asked)))
        }
        Task::Unpause(aggregate_type) => {
            let preview = app.outbox.preview_unpause(aggregate_type.as_deref());
            let preview = app.ask(preview).await?;
            let form = preview.present.as_ref().map(|_| form(visit, asked));
            Ok(of_pause(visit, &preview, form.unwrap_or_default()))
        }
    }
}

async fn of_resume(visit: &Visit, asked: &Asked, aggregate: &Aggregate, mut preview: ResumePreview) -> Page {
    let mut unseen = Vec::new();
    if preview.can_resume {
        match causes::of_aggregate(&visit.app, aggregate).await {
            Ok(causes) => preview.recheck(causes),
            Err(error) => unseen.push(error),
        }
    }
    let body = html! {
        p.sentence { (layout::aggregate(visit, &aggregate.aggregate_type, &aggregate.id)) ": " (visit.prose(&preview.effect)) "." }
        (causes::list(visit, &preview.causes, 1))
        @for unseen in &unseen { (layout::not_seen(visit, unseen)) }
        @if preview.can_resume { (form(visit, asked)) }
    };
    Page::new(
        "What would resume do?",
        &Seen {
            preview: &preview,
            unseen: &unseen,
        },
        body,
    )
}

fn effects(visit: &Visit, effects: &[String]) -> Markup {
    html! { ul { @for effect in effects { li { (visit.prose(effect)) } } } }
}

fn of_pause(visit: &Visit, preview: &PausePreview, form: Markup) -> Page {
    let scope = match &preview.aggregate_type {
        Some(aggregate_type) => format!("aggregates of type {aggregate_type}"),
        None => "all messages".to_owned(),
    };
    let body = html! {
        p.sentence { "It would " (preview.change) " publishing of " (scope) "." }
        (effects(visit, &preview.effects))
        (form)
    };
    Page::new(format!("What would {} do?", preview.change), preview, body)
}

fn describe(visit: &Visit, preview: &Preview) -> Markup {
    let messages = counted(preview.messages, "message", "messages");
    let aggregates = counted(preview.aggregates, "aggregate", "aggregates");
    html! {
        @if preview.messages == 0 {
            p.sentence { "Nothing: no dead letter matches." }
        } @else {
            p.sentence { "It would " (preview.change.as_str()) " " (messages) " of " (aggregates) "." }
        }
        @if !preview.is_complete { p { "Counting stopped after " (PREVIEW_MAX) "; the change takes all." } }
        (effects(visit, &preview.effects))
        @if !preview.event_types.is_empty() {
            dl.facts { @for (event_type, messages) in &preview.event_types { dt { (event_type) } dd { (messages) } } }
        }
        @if !preview.errors.is_empty() {
            h2 { "Why they are dead letters" }
            ul {
                @for error in &preview.errors { li { (error.messages) " × " (error.error) } }
                @if preview.errors_unlisted > 0 { li { (preview.errors_unlisted) " with other errors" } }
            }
        }
        (causes::list(visit, &preview.causes, preview.messages))
    }
}

/// The form that does it, for those who may.
fn form(visit: &Visit, asked: &Asked) -> Markup {
    if visit.app.changes.is_none() {
        return html! { p { "This dashboard only reads. The command line makes changes." } };
    }
    if !visit.access.may_change() {
        return html! { p { "Your role (" (visit.access.role().as_str()) ") may not make changes." } };
    }
    let filter = asked.filter();
    html! {
        form method="post" action=(visit.link("/change", &[])) {
            (visit.token_field())
            input type="hidden" name="change" value=(asked.change);
            input type="hidden" name="all" value=(asked.all);
            input type="hidden" name="aggregate_type" value=(asked.aggregate_type);
            input type="hidden" name="lasts" value=(asked.lasts);
            @for (name, value) in filter.fields() { input type="hidden" name=(name) value=(value); }
            p {
                label for="reason" { "Why (for the audit)" } " "
                input id="reason" name="reason" maxlength="1000" size="40";
            }
            p { button.do type="submit" { "Do it: " (asked.change) } }
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

/// What a change has done.
struct Done {
    /// How many messages, aggregates or pauses it has changed.
    changed: u64,
    operation: Option<OperationId>,
}

/// Makes a change. Also returns the path of the page that shows what became of it, if one does.
async fn make_change(visit: &Visit, asked: &Asked) -> Result<(Page, Option<String>), Problem> {
    visit.check_token(&asked.token)?;
    let user = visit.access.user();
    let changes = visit.app.changes.clone();
    let changes = changes.ok_or_else(|| Problem::Forbidden("this dashboard only reads".to_owned()))?;
    let task = asked.task()?;
    tracing::info!(user, change = asked.change, filter = ?asked.filter(), "a change begins");
    // A crash or an error leaves the transactions that were completed; `apply` says what a repetition does. Dropping the request drops only the wait.
    let intent = Intent::of(user).because(&asked.reason);
    let done = tokio::spawn(carry_out(changes, task.clone(), intent)).await;
    let done = done.map_err(|error| Problem::Failed(error.to_string()))?;
    let Done { changed, operation } = done.inspect_err(|problem| {
        tracing::warn!(
            user,
            change = asked.change,
            error = problem.text(),
            "a change failed"
        );
    })?;
    let id = operation.map(|id| id.to_string());
    tracing::info!(
        user,
        change = asked.change,
        changed,
        operation = id,
        "a change ended"
    );
    let data = json!({ "change": asked.change, "changed": changed, "operation": id });
    let page = Page::new("Done", &data, done_body(visit, asked, &task, changed));
    let path = match &task {
        // Where nothing was changed there is no operation, and the page says so.
        Task::Change(..) | Task::Resume(_) => id.map(|id| format!("/operations/{id}")),
        Task::Pause(..) | Task::Unpause(_) => (changed > 0).then(|| "/pauses".to_owned()),
    };
    Ok((page, path))
}

fn done_body(visit: &Visit, asked: &Asked, task: &Task, changed: u64) -> Markup {
    let aggregate = match task {
        Task::Resume(aggregate) => Some(aggregate.clone()),
        Task::Change(..) => filter::aggregate(&asked.aggregate).ok(),
        Task::Pause(..) | Task::Unpause(_) => None,
    };
    html! {
        p.sentence role="status" { (outcome(task, changed)) }
        @if let Some(aggregate) = &aggregate {
            p { a href=(visit.link("/aggregate", &[("of", &aggregate.to_string())])) { (aggregate) } }
        }
        @if filter::given(&asked.id).is_some() {
            p { a href=(visit.link(&format!("/messages/{}", asked.id.trim()), &[])) { "The message" } }
        }
        p { a href=(visit.link("/", &[])) { "Overview" } }
    }
}

async fn carry_out(changes: Arc<dyn Outbox>, task: Task, intent: Intent) -> Result<Done, Problem> {
    let of_pause = |paused: PauseChanged| Done {
        changed: paused.changed.into(),
        operation: paused.operation,
    };
    Ok(match task {
        Task::Change(change, selection) => {
            let applied = changes.apply(change, &selection, intent).await?;
            Done {
                changed: applied.messages,
                operation: applied.operation,
            }
        }
        Task::Resume(aggregate) => {
            let resumed = changes.apply_resume(&aggregate, intent).await?;
            Done {
                changed: resumed.resumed.into(),
                operation: resumed.operation,
            }
        }
        Task::Pause(aggregate_type, lasts) => {
            let request = PauseRequest {
                aggregate_type,
                reason: intent.reason.clone().unwrap_or_else(|| NO_REASON.to_owned()),
                by: intent.actor.clone(),
                lasts,
            };
            of_pause(changes.apply_pause(&request, intent).await?)
        }
        Task::Unpause(aggregate_type) => {
            of_pause(changes.apply_unpause(aggregate_type.as_deref(), intent).await?)
        }
    })
}

/// What a pause says that was begun without a reason.
const NO_REASON: &str = "no reason was given";

/// Where something was changed, the page of the operation or of the pauses says so.
fn outcome(task: &Task, changed: u64) -> String {
    match (task, changed) {
        (Task::Resume(_), 0) => "It is not blocked any more, or halted; nothing was changed.".to_owned(),
        (Task::Change(..), 0) => "No dead letter matched; nothing was changed.".to_owned(),
        (Task::Unpause(_), 0) => "It is not paused any more; nothing was changed.".to_owned(),
        _ => counted(changed, "thing was changed.", "things were changed."),
    }
}
