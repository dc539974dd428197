//! The proof: the ledger of a span, drawn up on demand.
//!
//! Invariants: looking draws up nothing. It is begun by the form of an operator, because it reads each row of the span, and changes nothing anywhere.

use axum::Form;
use axum::extract::Query;
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::json;
use time::OffsetDateTime;

use crate::web::filter::{given, time};
use crate::web::layout;
use crate::web::prover::{self, Ended, PROVE_MAX, Running, SPAN_MAX};
use crate::web::source::ProofSpan;
use crate::web::visit::{Page, Problem, Visit};
use crate::{ConsumerBooks, Findings, Proof, State, Verdict};

/// Which span, as an address or a form says it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::web) struct Asked {
    since: String,
    until: String,
    /// `yes` to end the proof that is drawn up. Only in a form, as the token.
    end: String,
    token: String,
}

impl Asked {
    fn span(&self) -> Result<ProofSpan, Problem> {
        let malformed = |text: String| Err(Problem::Malformed(text));
        let since = time(given(&self.since).unwrap_or("24h"))?;
        let until = time(given(&self.until).unwrap_or("1m"))?;
        if since >= until {
            return malformed(
                "the span is empty: it begins when it ends, or later; without an end it ends a minute ago"
                    .to_owned(),
            );
        }
        if until > OffsetDateTime::now_utc() {
            return malformed(
                "the span ends in the future; let it end a minute ago, so that transactions that are open can end"
                    .to_owned(),
            );
        }
        if until - since > SPAN_MAX {
            return malformed(format!(
                "the span is longer than {} days; choose a shorter one, or use `outbox prove`, which has no such bound",
                SPAN_MAX.whole_days()
            ));
        }
        Ok(ProofSpan { since, until })
    }
}

pub(in crate::web) async fn get(visit: Visit, Query(asked): Query<Asked>) -> Response {
    visit.respond(Ok(make(&visit, &asked)))
}

pub(in crate::web) async fn post(visit: Visit, Form(asked): Form<Asked>) -> Response {
    match begin(&visit, &asked) {
        Ok(()) if visit.wants_json => visit.respond(Ok(make(&visit, &Asked::default()))),
        // So that loading the page again does not send the form again.
        Ok(()) => Redirect::to(&visit.link("/proof", &[])).into_response(),
        Err(problem) => visit.respond(Err(problem)),
    }
}

/// Begins or ends a proof. A crash of this program leaves nothing of it behind.
fn begin(visit: &Visit, asked: &Asked) -> Result<(), Problem> {
    visit.check_token(&asked.token)?;
    let user = visit.access.user();
    if asked.end == "yes" {
        let ended = visit.app.prover.end();
        tracing::info!(user, ended, "a proof was ended");
        return Ok(());
    }
    let span = asked.span()?;
    prover::start(&visit.app, span, user)?;
    tracing::info!(user, since = %span.since, until = %span.until, "a proof is drawn up");
    Ok(())
}

fn make(visit: &Visit, asked: &Asked) -> Page {
    let (running, last) = visit.app.prover.look();
    let body = html! {
        p {
            "What was committed is on the stream, in order, and has had its effect or became a dead letter. "
            "A proof reads outbox, stream and inboxes and changes nothing. It reads each row of the span, so it is drawn up on demand, one at a time."
        }
        // Replaced by the script until the proof is there.
        div data-fresh data-running[running.is_some()] {
            @match &running {
                Some(running) => (progress(visit, running)),
                None => (form(visit, asked)),
            }
            @if let Some(ended) = &last { (result(visit, ended)) }
        }
    };
    let data = json!({ "running": running, "last": last.as_deref() });
    let mut page = Page::new("Proof", &data, body);
    page.is_running = running.is_some();
    page
}

fn form(visit: &Visit, asked: &Asked) -> Markup {
    if !visit.access.may_change() {
        return html! {
            p.note {
                "Your role (" (visit.access.role().as_str()) ") may look at a proof, and an operator draws one up. On the command line: "
                code { (visit.called("outbox prove --since 24h")) }
            }
        };
    }
    html! {
        form.filter method="post" action=(visit.link("/proof", &[])) {
            (visit.token_field())
            div {
                label for="since" { "Recorded since" }
                input id="since" name="since" value=(given(&asked.since).unwrap_or("24h")) aria-describedby="bounds";
            }
            div {
                label for="until" { "and before" }
                input id="until" name="until" value=(given(&asked.until).unwrap_or("1m")) aria-describedby="bounds";
            }
            button type="submit" { "Draw it up" }
        }
        p.quiet id="bounds" {
            code { "24h" } " is 24 hours ago; a date, or a time by RFC 3339. At most " (SPAN_MAX.whole_days()) " days and "
            (PROVE_MAX.as_secs() / 60) " minutes of work. What is recorded by a transaction that is open for longer than the end of the span is past is not seen."
        }
    }
}

fn progress(visit: &Visit, running: &Running) -> Markup {
    html! {
        p.sentence role="status" {
            span.state.idle { "running" } " "
            (layout::time(running.span.since)) " to " (layout::time(running.span.until)) " UTC: " (running.stage) ", " (running.read) " read."
        }
        p { "Begun by " (running.by) " at " (layout::time(running.began_at)) " UTC." }
        @if visit.access.may_change() {
            form method="post" action=(visit.link("/proof", &[])) {
                (visit.token_field())
                input type="hidden" name="end" value="yes";
                p {
                    a.button href=(visit.link("/proof", &[])) { "Look again" }
                    button type="submit" { "End it" }
                }
            }
        }
    }
}

fn result(visit: &Visit, ended: &Ended) -> Markup {
    html! {
        h2 { "The last proof" }
        @if let Some(error) = &ended.error {
            p.error { "There is no proof of " (layout::time(ended.span.since)) " to " (layout::time(ended.span.until)) " UTC: " (visit.prose(error)) }
        }
        @if let Some(proof) = &ended.proof { (books(visit, proof)) }
        p.quiet {
            "Drawn up for " (ended.by) " from " (layout::time(ended.began_at)) " to " (layout::time(ended.ended_at)) " UTC. "
            a href=(visit.link("/proof.json", &[])) { "As JSON" }
            ", for a report. It is kept until the next one, or until this program ends."
        }
    }
}

fn state_of(verdict: Verdict) -> State {
    match verdict {
        Verdict::Balanced => State::Well,
        Verdict::CannotTell => State::Degraded,
        Verdict::NotBalanced => State::Stuck,
    }
}

/// What the verdict means.
fn sentence(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Balanced => {
            "What was committed is on the stream, in order, and each consumer has handled it, given it up, or wants none of it."
        }
        Verdict::CannotTell => "Nothing is known to be wrong; something is not done yet, or cannot be known.",
        Verdict::NotBalanced => {
            "Something is lost, was deleted, was never recorded, is out of order, or has no effect."
        }
    }
}

fn books(visit: &Visit, proof: &Proof) -> Markup {
    let missing: u64 = proof.consumers.iter().map(|books| books.missing.count).sum();
    let counts = [
        ("Committed", proof.outbox.committed),
        ("On the stream", proof.stream.events),
        ("Lost", proof.lost.count),
        ("Ghosts", proof.ghosts.count),
        ("Missing numbers", proof.holes.count),
        ("Out of order", proof.inversions.count),
        ("Without effect", missing),
        ("Dead letters", proof.outbox.dead_letters),
        ("Not published yet", proof.outbox.unpublished),
        ("Copies", proof.stream.copies),
    ];
    html! {
        p.sentence {
            span class={ "state " (state_of(proof.verdict).as_str()) } { (proof.verdict.as_str()) } " " (sentence(proof.verdict))
        }
        p { "Recorded from " (layout::time(proof.since)) " to " (layout::time(proof.until)) " UTC." }
        (layout::reasons(visit, &proof.reasons))
        dl.counts { @for (title, count) in counts { div { dt { (title) } dd { (count) } } } }
        @if !proof.consumers.is_empty() {
            @let lines: Vec<Markup> = proof.consumers.iter().map(|books| consumer(visit, books)).collect();
            (layout::table("Effects of the committed events, by consumer", &CONSUMERS, &lines))
        }
        (named(visit, "Lost", &proof.lost))
        (named(visit, "Ghosts", &proof.ghosts))
        @if !proof.holes.first.is_empty() {
            @let lines: Vec<Markup> = proof.holes.first.iter().map(|found| hole(visit, found)).collect();
            h2 { "Missing numbers" }
            (layout::table("Missing numbers: the first of them", &["Aggregate", "Numbers"], &lines))
        }
        (named(visit, "Out of order", &proof.inversions))
        @for books in &proof.consumers { (named(visit, &format!("Without effect: {}", books.consumer), &books.missing)) }
        details {
            summary { "All counts, and what the words mean" }
            (all_counts(proof))
        }
    }
}

const CONSUMERS: [&str; 7] = [
    "Consumer",
    "Handled",
    "Dead letters",
    "Failed",
    "Open",
    "Passed",
    "Without effect",
];

fn consumer(visit: &Visit, books: &ConsumerBooks) -> Markup {
    let letters = visit.link("/dead-letters", &[("consumer", &books.consumer)]);
    html! {
        th scope="row" { (books.consumer) }
        td.number { (books.handled) }
        td.number { @if books.dead_letters > 0 { a href=(letters) { (books.dead_letters) } } @else { "0" } }
        td.number { (books.failed) }
        td.number { (books.open) }
        td.number { (books.passed) }
        td.number { (books.missing.count) }
    }
}

fn hole(visit: &Visit, found: &crate::HoleOf) -> Markup {
    html! {
        td { (layout::aggregate(visit, &found.aggregate_type, &found.aggregate_id)) }
        td.number { (found.hole.numbers()) }
    }
}

/// The first of the findings.
fn named(visit: &Visit, what: &str, findings: &Findings) -> Markup {
    let line = |found: &crate::Found| {
        let id = found.event_id.to_string();
        html! {
            td.id { a href=(visit.link(&format!("/messages/{id}"), &[])) { (id) } }
            td.number { (layout::any(found.stream_sequence)) }
        }
    };
    let lines: Vec<Markup> = findings.first.iter().map(line).collect();
    let left = findings.count.saturating_sub(findings.first.len() as u64);
    html! {
        @if findings.count > 0 {
            h2 { (what) }
            (layout::table(&format!("{what}: the first by their ids"), &["Event", "Stream sequence"], &lines))
            @if left > 0 { p { "and " (left) " more; " code { (visit.called("outbox prove --findings")) } " names more." } }
        }
    }
}

fn all_counts(proof: &Proof) -> Markup {
    let (outbox, stream) = (&proof.outbox, &proof.stream);
    let rows = [
        (
            "Committed",
            outbox.committed,
            "events of the outbox, without replayed copies",
        ),
        (
            "Published",
            outbox.published,
            "of those, noted as published by a relay",
        ),
        (
            "Not published yet",
            outbox.unpublished,
            "of those, pending or waiting",
        ),
        (
            "Dead letters",
            outbox.dead_letters,
            "of those, given up by a relay",
        ),
        (
            "Logged",
            outbox.logged,
            "of those, for a log relay, which does not note what it has published",
        ),
        ("Replayed", outbox.replayed, "copies that replays have recorded"),
        (
            "On the stream",
            stream.events,
            "committed events that are on the stream",
        ),
        (
            "Copies",
            stream.copies,
            "further places of these events; a consumer drops them",
        ),
        (
            "Expired",
            stream.expired,
            "published events that the limits of the stream may have taken",
        ),
        (
            "Logged and absent",
            stream.logged_absent,
            "not on the stream yet, or lost",
        ),
        (
            "Unrecorded",
            stream.unrecorded,
            "on the stream, and the outbox has deleted its rows of that time",
        ),
        ("Of others", stream.of_others, "messages of other outboxes"),
        (
            "Foreign",
            stream.foreign,
            "entries that are no messages of an outbox",
        ),
        ("Read", proof.facts, "rows and places"),
    ];
    let line = |(name, count, means): &(&str, u64, &str)| {
        html! { th scope="row" { (name) } td.number { (count) } td { (means) } }
    };
    let lines: Vec<Markup> = rows.iter().map(line).collect();
    html! {
        (layout::table("Outbox and stream", &["What", "Count", "Means"], &lines))
        p {
            "Lost: noted as published, and not on the stream. Ghost: on the stream, and never recorded, or recorded otherwise. Missing number: no row and no message on the stream, between two numbers of an "
            "aggregate. Out of order: behind a later event of its aggregate. Without effect: acknowledged without a row by a consumer that writes one per event. Passed: acknowledged "
            "without a row, so the effect cannot be known. Open: the consumer has not come to it."
        }
    }
}
