//! What a change would do, as its page shows it.
//!
//! Invariant: a preview changes nothing, and stands without the stream. What could not be asked is shown, and the change can be made.

use std::sync::Arc;

use maud::{Markup, html};
use outbox_core::OutboxAudit;
use serde::Serialize;
use serde_json::{Value, json};

use super::task::{Letters, Task};
use crate::stream_view::answered;
use crate::web::App;
use crate::web::layout::{self, Cause};
use crate::web::pages::letters::letters;
use crate::web::sampler::latest;
use crate::web::visit::{Problem, Visit};
use crate::words::{any, counted};
use crate::{
    CauseNow, Change, LetterChange, LetterPreview, Next, PREVIEW_MAX, PausePreview, RECHECKED_MAX,
    causes_of_aggregate, letter_causes, look_ahead, pause_scope, preview_pause, preview_resume,
    preview_unpause,
};

/// A preview on its page.
pub(super) struct Preview {
    pub(super) sentence: Markup,
    pub(super) effects: Vec<String>,
    pub(super) details: Markup,
    /// What could not be looked at, for people.
    pub(super) unseen: Vec<String>,
    pub(super) data: Value,
    pub(super) can_be_made: bool,
}

impl Preview {
    fn new(
        sentence: impl Into<String>,
        effects: &[String],
        data: &impl Serialize,
        can_be_made: bool,
    ) -> Self {
        let sentence = sentence.into();
        Self {
            sentence: html! { (sentence) },
            effects: effects.to_vec(),
            details: html! {},
            unseen: Vec::new(),
            // Serialising into memory fails for maps whose keys are no texts; there are none.
            data: serde_json::to_value(data).unwrap_or(Value::Null),
            can_be_made,
        }
    }
}

pub(super) async fn previewed<S: OutboxAudit>(
    app: &Arc<App<S>>,
    visit: &Visit,
    task: &Task,
) -> Result<Preview, Problem> {
    match task {
        Task::Messages(change, selection) => {
            let preview = app
                .ask(crate::preview(&app.store, *change, selection, None))
                .await?;
            Ok(of_messages(app, visit, *change, preview).await)
        }
        Task::Resume(aggregate) => {
            let mut preview = app.ask(preview_resume(&app.store, aggregate)).await?;
            let mut unseen = Vec::new();
            if preview.can_resume {
                let broker = answered(app.timeout, app.stream.refuses()).await;
                let causes = app.ask(causes_of_aggregate(&app.store, aggregate, broker)).await;
                match causes {
                    Ok(causes) => preview.recheck(causes),
                    Err(problem) => unseen.push(format!("whether the causes still hold: {}", problem.text())),
                }
            }
            let name = layout::aggregate(visit, &aggregate.aggregate_type, &aggregate.id);
            Ok(Preview {
                sentence: html! { (name) ": " (&preview.effect) "." },
                details: layout::causes(visit, &shown(&preview.causes)),
                unseen,
                ..Preview::new("", &[], &preview, preview.can_resume)
            })
        }
        Task::Pause(aggregate_type, lasts) => {
            let preview = preview_pause(&app.store, aggregate_type.as_deref(), *lasts);
            Ok(of_pause(&app.ask(preview).await?, true))
        }
        Task::Unpause(aggregate_type) => {
            let preview = app
                .ask(preview_unpause(&app.store, aggregate_type.as_deref()))
                .await?;
            Ok(of_pause(&preview, preview.present.is_some()))
        }
        Task::Letters(change, of) => of_letters(app, visit, *change, of).await,
        Task::PauseConsumer(name) => of_consumer(app, name, true).await,
        Task::ResumeConsumer(name) => of_consumer(app, name, false).await,
    }
}

fn shown(causes: &[CauseNow]) -> Vec<Cause> {
    let shown = causes.iter().map(|cause| Cause {
        holds: cause.holds,
        what: format!(
            "{}: {}",
            counted(cause.messages, "message", "messages"),
            cause.what
        ),
        next: cause.next.clone(),
    });
    shown.collect()
}

async fn of_messages<S: OutboxAudit>(
    app: &App<S>,
    visit: &Visit,
    change: Change,
    mut preview: crate::Preview,
) -> Preview {
    let unseen = look_ahead(&app.store, &*app.stream, &mut preview, app.timeout).await;
    let unseen = unseen.into_iter().collect();
    let messages = counted(preview.messages, "message", "messages");
    let aggregates = counted(preview.aggregates, "aggregate", "aggregates");
    let sentence = match preview.messages {
        0 => "Nothing: no dead letter matches.".to_owned(),
        _ => format!("It would {change} {messages} of {aggregates}."),
    };
    let details = html! {
        @if !preview.is_complete { p { "Counting stopped after " (PREVIEW_MAX) "; the change takes all." } }
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
        (layout::causes(visit, &shown(&preview.causes)))
        @if preview.messages > RECHECKED_MAX as u64 { p.quiet { "Causes are of the first " (RECHECKED_MAX) " messages." } }
    };
    let has_effect = preview.messages > 0 || !preview.is_complete;
    Preview {
        details,
        unseen,
        ..Preview::new(sentence, &preview.effects, &preview, has_effect)
    }
}

fn of_pause(preview: &PausePreview, can_be_made: bool) -> Preview {
    let scope = pause_scope(preview.aggregate_type.as_deref());
    let sentence = format!("It would {} publishing of {scope}.", preview.change);
    Preview::new(sentence, &preview.effects, preview, can_be_made)
}

async fn of_letters<S: OutboxAudit>(
    app: &Arc<App<S>>,
    visit: &Visit,
    change: LetterChange,
    of: &Letters,
) -> Result<Preview, Problem> {
    let letters = letters(app)?;
    let rows = of.read(app, letters, change).await?;
    let mut preview = LetterPreview::of(change, rows.len() as u64);
    if change == LetterChange::Retry {
        let sample = latest(app).await?;
        let consumers = match &sample.consumers_error {
            Some(error) => Err(error.as_str()),
            None => Ok(sample.consumers.as_slice()),
        };
        preview.causes = app.ask(letter_causes(letters, &rows, consumers)).await?;
    }
    let count = counted(preview.dead_letters, "dead letter", "dead letters");
    let sentence = match preview.dead_letters {
        0 => "Nothing: no dead letter matches.".to_owned(),
        _ => format!("It would {change} {count}."),
    };
    let causes = preview.causes.iter().map(|cause| Cause {
        holds: cause.holds,
        what: format!("{}: {}", cause.group.consumer, cause.what),
        next: cause.next.clone().map(Next::from).unwrap_or_default(),
    });
    let details = html! {
        @if let Some(first) = rows.first() {
            dl.facts {
                dt { "Consumer" } dd { (first.consumer) }
                dt { "Event type" } dd { (any(first.event_type.as_ref())) }
                dt { "Error of the oldest" } dd { (first.error) }
            }
        }
        (layout::causes(visit, &causes.collect::<Vec<_>>()))
    };
    Ok(Preview {
        details,
        ..Preview::new(sentence, &preview.effects, &preview, preview.dead_letters > 0)
    })
}

async fn of_consumer<S: OutboxAudit>(app: &Arc<App<S>>, name: &str, pause: bool) -> Result<Preview, Problem> {
    let sample = latest(app).await?;
    let row = sample.consumers.iter().find(|row| row.consumer == name);
    let missing = || Problem::NotFound("the stream has no such consumer".to_owned());
    let paused = row.ok_or_else(missing)?.paused.as_deref();
    let (sentence, effect, can_be_made) = match (pause, paused) {
        (true, Some(reason)) => ("Nothing: it is paused already.", reason.to_owned(), false),
        (true, None) => (
            "It would pause the consumer.",
            "running handlers end, no other begins, messages wait on the stream, and no attempts are used"
                .to_owned(),
            true,
        ),
        (false, Some(reason)) => ("It would end the pause of the consumer.", reason.to_owned(), true),
        (false, None) => ("Nothing: it is not paused.", String::new(), false),
    };
    let effects: Vec<String> = [effect].into_iter().filter(|effect| !effect.is_empty()).collect();
    let data = json!({ "consumer": name, "effects": effects, "can_be_made": can_be_made });
    Ok(Preview {
        sentence: html! { (name) ": " (sentence) },
        ..Preview::new("", &effects, &data, can_be_made)
    })
}
