//! Relays and partitions, and the aggregates that wait.

use axum::response::Response;
use maud::{Markup, html};
use serde_json::json;

use super::{ROWS_MAX, is_full};
use crate::web::layout;
use crate::web::visit::{Page, Problem, Visit};
use crate::{BlockedRow, PartitionRow, RelayRow};

pub(in crate::web) async fn get(visit: Visit) -> Response {
    let made = make(&visit).await;
    visit.respond(made)
}

async fn make(visit: &Visit) -> Result<Page, Problem> {
    let app = &visit.app;
    let relays = app.ask(app.outbox.relays()).await?;
    let partitions = app.ask(app.outbox.partitions()).await?;
    let unowned = partitions.iter().filter(|row| row.owner.is_none()).count();
    let body = html! {
        @if !relays.iter().any(|relay| relay.is_alive) {
            p.error { "No relay is alive: nothing is published. Start one, for example with " code { (visit.called("outbox relay run")) } "." }
        }
        @if !relays.is_empty() {
            (relay_table("Relays, and behind them those that have died and left partitions", &relays))
        }
        h2 { "Partitions" }
        p { (unowned) " of " (partitions.len()) " partitions have no owner." }
        (partition_table(&partitions))
    };
    let data = json!({ "relays": relays, "partitions": partitions });
    Ok(Page::new("Relays and partitions", &data, body))
}

pub(super) fn relay_table(caption: &str, relays: &[RelayRow]) -> Markup {
    let row = |row: &RelayRow| {
        html! {
            td.id { (row.owner) }
            td { (layout::any(row.name.as_deref())) }
            td { (row.says()) }
            td.number { (row.partitions) }
            td { @if let Some(time) = row.started_at { (layout::time(time)) } }
            td { (layout::any(row.is_alive.then(|| layout::duration(row.expires_in)))) }
        }
    };
    let columns = [
        "Relay",
        "Name",
        "Says",
        "Partitions",
        "Started (UTC)",
        "Counts as dead in",
    ];
    let rows: Vec<Markup> = relays.iter().map(row).collect();
    layout::table(caption, &columns, &rows)
}

fn partition_table(partitions: &[PartitionRow]) -> Markup {
    let row = |row: &PartitionRow| {
        html! {
            th scope="row" { (row.partition) }
            td.id { (layout::any(row.owner)) }
            td { (layout::any(row.expires_in.map(layout::duration))) }
            td.number { (row.epoch) }
        }
    };
    let columns = ["Partition", "Relay", "Lease runs out in", "Times acquired"];
    let rows: Vec<Markup> = partitions.iter().map(row).collect();
    layout::table("Partitions and their owners", &columns, &rows)
}

pub(in crate::web) async fn blocked(visit: Visit) -> Response {
    let made = make_blocked(&visit).await;
    visit.respond(made)
}

async fn make_blocked(visit: &Visit) -> Result<Page, Problem> {
    let app = &visit.app;
    let rows = app.ask(app.outbox.blocked(ROWS_MAX)).await?;
    let is_cut = is_full(rows.len());
    let lines: Vec<Markup> = rows.iter().map(|row| line(visit, row)).collect();
    let columns = ["Aggregate", "Waits for", "Dead letter", "Error"];
    let body = html! {
        @if rows.is_empty() {
            p { "No aggregate is blocked." }
        } @else {
            (layout::table("Blocked aggregates, those that wait for an operator first", &columns, &lines))
        }
        @if is_cut { p { "There may be more: the list ends after " (ROWS_MAX) "." } }
    };
    let data = json!({ "blocked": rows, "is_complete": !is_cut });
    Ok(Page::new("Blocked aggregates", &data, body))
}

fn line(visit: &Visit, row: &BlockedRow) -> Markup {
    html! {
        td { (layout::aggregate(visit, &row.aggregate_type, &row.aggregate_id)) }
        td {
            @if row.halted { "an operator" } @else { (layout::any(row.blocked_for.map(layout::duration))) }
        }
        td.id {
            @if let Some(id) = row.halted_by {
                a href=(visit.link(&format!("/messages/{id}"), &[])) { (id) }
            }
        }
        td { (row.error.as_deref().unwrap_or_default()) }
    }
}
