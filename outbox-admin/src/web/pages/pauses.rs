//! The pauses of publishing that stand, with the relays that they hold up, and the forms that lead to a preview of another one.

use axum::response::Response;
use maud::{Markup, html};
use serde_json::json;

use super::relays::relay_table;
use crate::PauseRow;
use crate::web::layout;
use crate::web::visit::{Page, Problem, Visit};

pub(in crate::web) async fn get(visit: Visit) -> Response {
    let made = make(&visit).await;
    visit.respond(made)
}

async fn make(visit: &Visit) -> Result<Page, Problem> {
    let app = &visit.app;
    let pauses = app.ask(app.outbox.pauses()).await?;
    let mut relays = app.ask(app.outbox.relays()).await?;
    // A pause holds up none that has died.
    relays.retain(|relay| relay.is_alive);
    let body = html! {
        @if pauses.is_empty() {
            p.sentence { (layout::state(crate::State::Well)) " Publishing is not paused." }
        } @else {
            (table(visit, &pauses))
        }
        @if visit.app.changes.is_some() && visit.access.may_change() { (form(visit)) }
        h2 { "Relays" }
        @if relays.is_empty() {
            p.error { "No relay is alive: nothing is published, paused or not. Start one, for example with " code { (visit.called("outbox relay run")) } "." }
        } @else {
            (relay_table("Relays that are alive", &relays))
            p.quiet { "A relay knows of a pause, and of its end, after a third of its " code { "lease_ttl" } " (5 s by default). What it has sent before is finished." }
        }
    };
    let data = json!({ "pauses": pauses, "relays": relays });
    Ok(Page::new("Pauses", &data, body))
}

/// The pauses that stand, with the page that would end each.
pub(super) fn table(visit: &Visit, pauses: &[PauseRow]) -> Markup {
    let row = |row: &PauseRow| {
        let aggregate_type = row.aggregate_type.as_deref().unwrap_or_default();
        let query = [("change", "unpause"), ("aggregate_type", aggregate_type)];
        html! {
            th scope="row" { (row.scope()) }
            td { (row.by) }
            td { (layout::time(row.since)) }
            td { (row.reason) }
            td { @match row.ends_in { Some(left) => { "by itself in " (layout::duration(left)) }, None => "when somebody ends it" } }
            td { a href=(visit.link("/change", &query)) { "What would ending it do?" } }
        }
    };
    let columns = ["Paused", "By", "Since (UTC)", "Why", "Ends", "Next"];
    let rows: Vec<Markup> = pauses.iter().map(row).collect();
    layout::table("Publishing is paused", &columns, &rows)
}

fn form(visit: &Visit) -> Markup {
    html! {
        h2 { "Pause publishing" }
        form.filter method="get" action=(visit.link("/change", &[])) {
            input type="hidden" name="change" value="pause";
            div {
                label for="aggregate_type" { "Aggregates of this type; empty: all messages" }
                input id="aggregate_type" name="aggregate_type" placeholder="order";
            }
            div {
                label for="lasts" { "For; empty: until somebody ends it" }
                input id="lasts" name="lasts" placeholder="2h";
            }
            button type="submit" { "What would it do?" }
        }
    }
}
