//! Page of an aggregate: causes, block and timeline.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use outbox::core::{OutboxReader, Selection};
use serde::Deserialize;

use super::messages;
use crate::admin::web::Dashboard;
use crate::admin::web::visit::{Page, Problem, Visit, link};
use crate::admin::web::{filter, layout};
use crate::admin::{Hole, MessageOrAggregate, Timeline};

/// Maximum events: each needs a lookup on the stream.
const EVENTS_MAX: NonZeroU32 = NonZeroU32::new(25).unwrap();

/// An aggregate id may contain any character, so it is not part of the path.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::admin::web) struct Of {
    of: String,
    after: String,
}

pub(in crate::admin::web) async fn get<S: OutboxReader>(
    State(app): State<Arc<Dashboard<S>>>,
    visit: Visit,
    Query(of): Query<Of>,
) -> Response {
    let made = make(&app, &of).await;
    visit.respond(made)
}

async fn make<S: OutboxReader>(app: &Dashboard<S>, of: &Of) -> Result<Page, Problem> {
    let aggregate = filter::aggregate(&of.of)?;
    let selection = filter::after(Selection::all(), &of.after)?;
    let why = messages::explain(app, &MessageOrAggregate::Aggregate(aggregate.clone())).await?;
    let block = app.ask(app.store.block(&aggregate)).await?;
    let blocked_for = block.and_then(|block| block.blocked_for);
    let reading = Timeline::of(&app.store, &aggregate, selection, EVENTS_MAX);
    let mut timeline = app.ask(reading).await?;
    timeline
        .follow(&app.store, &*app.stream, messages::PATIENCE)
        .await;
    let last = timeline.events.last().filter(|_| !timeline.is_complete);
    let next = last.map(|event| {
        let after = event.row.row_id.to_string();
        link("/aggregate", &[("of", &of.of), ("after", &after)])
    });
    let body = html! {
        (messages::explanation(&why))
        @if let Some(left) = blocked_for {
            p { "Blocked for " (layout::duration(left)) "." }
        }
        h2 { "Timeline" }
        (events(&timeline))
        @if let Some(next) = &next { p { a href=(next) rel="next" { "Later events" } } }
    };
    Ok(Page::new(aggregate.to_string(), body))
}

fn events(timeline: &Timeline) -> Markup {
    html! {
        p {
            @match timeline.last_sequence {
                Some(last) => { "Last sequence: " (last) "." }
                None => "No sequence: no ordered event was recorded, or the aggregate was forgotten.",
            }
        }
        @if timeline.events.is_empty() {
            p { "The outbox has no event of this aggregate: none was recorded, or the rows were deleted." }
        } @else {
            (layout::table("Events, oldest first", &timeline.events))
        }
        @if !timeline.holes.is_empty() {
            p {
                "No rows for " (timeline.holes.iter().map(Hole::numbers).collect::<Vec<_>>().join(", "))
                ": the rows were deleted. Unknown: whether the events were published."
            }
        }
        @for unseen in &timeline.unseen { (layout::not_seen(unseen)) }
    }
}
