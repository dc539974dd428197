//! Whether the causes still hold of which messages have failed, in the preview of a change that has them tried again.
//!
//! Invariant: a preview stands without it. What could not be asked is said, and the change can be made.

use maud::{Markup, html};
use outbox_core::{Aggregate, MessageId};
use serde::Serialize;

use crate::web::App;
use crate::web::layout;
use crate::web::visit::{Problem, Visit};
use crate::words::counted;
use crate::{CauseNow, Holds, RECHECKED_MAX};

/// A preview for programs.
#[derive(Debug, Serialize)]
pub(super) struct Seen<'a, P> {
    #[serde(flatten)]
    pub(super) preview: &'a P,
    /// What could not be looked at, for people.
    pub(super) unseen: &'a [String],
}

/// The causes of these messages, or what could not be looked at.
pub(super) async fn of_messages(app: &App, messages: &[MessageId]) -> Result<Vec<CauseNow>, String> {
    // A change whose causes nobody asks for names no messages.
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let broker = app.ask_stream(app.stream.refuses()).await;
    said(app.ask(app.outbox.causes(messages, broker)).await)
}

/// The cause of the message that a blocked aggregate waits for, or what could not be looked at.
pub(super) async fn of_aggregate(app: &App, aggregate: &Aggregate) -> Result<Vec<CauseNow>, String> {
    let broker = app.ask_stream(app.stream.refuses()).await;
    said(app.ask(app.outbox.causes_of_aggregate(aggregate, broker)).await)
}

fn said(causes: Result<Vec<CauseNow>, Problem>) -> Result<Vec<CauseNow>, String> {
    causes.map_err(|problem| format!("whether the causes still hold: {}", problem.text()))
}

/// The causes, those that still hold first, each with what mends it. `of`: how many messages the change would take.
pub(super) fn list(visit: &Visit, causes: &[CauseNow], of: u64) -> Markup {
    html! {
        @if !causes.is_empty() {
            h2 { "Does the cause still hold?" }
            ul.reasons {
                @for cause in causes {
                    li {
                        span class={ "state " (class(cause.holds)) } { (cause.holds.as_str()) } " "
                        (counted(cause.messages, "message", "messages")) ": " (cause.what) " "
                        @if cause.holds != Holds::Gone {
                            (layout::next(visit, &cause.next))
                        }
                    }
                }
            }
            @if of > RECHECKED_MAX as u64 { p.quiet { "Only the first " (RECHECKED_MAX) " messages were looked at." } }
        }
    }
}

fn class(holds: Holds) -> &'static str {
    match holds {
        Holds::Still => "stuck",
        Holds::Unknown => "idle",
        Holds::Gone => "well",
    }
}
