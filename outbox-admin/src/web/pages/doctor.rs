//! The doctor: whether database, stream, consumers and settings fit together, with what mends what does not.

use std::sync::Arc;

use axum::extract::State as Extract;
use axum::response::Response;
use maud::{Markup, html};
use outbox_core::OutboxAudit;
use serde_json::json;

use crate::State;
use crate::doctor::{Check, CheckVerdict, Diagnosis};
use crate::web::App;
use crate::web::examiner::{self, EXAMINE_EVERY, Examined};
use crate::web::layout;
use crate::web::visit::{Page, Problem, Visit};

pub(in crate::web) async fn get<S: OutboxAudit>(
    Extract(app): Extract<Arc<App<S>>>,
    visit: Visit,
) -> Response {
    let made = make(&app, &visit).await;
    visit.respond(made)
}

async fn make<S: OutboxAudit>(app: &Arc<App<S>>, visit: &Visit) -> Result<Page, Problem> {
    let examined = match examiner::latest(app).await {
        Ok(examined) => examined,
        // A dashboard that cannot examine is no error of whoever asks.
        Err(Problem::NotFound(why)) => {
            let body = html! { p.note { (why) } };
            return Ok(Page::new("Doctor", &json!({ "error": why }), body));
        }
        Err(problem) => return Err(problem),
    };
    let mut findings: Vec<&Diagnosis> = examined.examination.findings.iter().collect();
    // The worst first; among equals, in the order of the checks.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.state));
    let state = findings.first().map_or(State::Well, |finding| finding.state);
    let data = json!({
        "state": state,
        "findings": findings,
        "unseen": examined.examination.unseen,
        "examined_at": layout::time_text(examined.at),
        "checks": Check::ALL.as_slice(),
        "not_checked": examined.examination.not_checked(),
    });
    Ok(Page::new(
        "Doctor",
        &data,
        body(visit, state, &findings, &examined),
    ))
}

fn body(visit: &Visit, state: State, findings: &[&Diagnosis], examined: &Examined) -> Markup {
    let rows: Vec<Markup> = findings.iter().map(|finding| line(visit, finding)).collect();
    let columns = ["State", "Check", "Seen", "Needed", "Next"];
    let unseen = &examined.examination.unseen;
    html! {
        p.sentence role="status" {
            (layout::state(state)) " " (examined.examination.tally()) "."
        }
        @if !findings.is_empty() { (layout::table("What does not fit, the worst first", &columns, &rows)) }
        @for unseen in unseen { (layout::not_seen(unseen)) }
        h2 { "All checks" }
        ul.checks {
            @for check in Check::ALL {
                @let verdict = examined.examination.verdict(check);
                li {
                    span { (check.as_str()) }
                    @match verdict {
                        CheckVerdict::Finding(worst) => (layout::state(worst)),
                        _ => span.state.idle { (verdict.as_str()) },
                    }
                }
            }
        }
        p.quiet {
            "Examined at " (layout::time(examined.at)) " UTC; examined again after " (EXAMINE_EVERY.as_secs()) " seconds, when somebody asks."
        }
    }
}

fn line(visit: &Visit, finding: &Diagnosis) -> Markup {
    html! {
        td { (layout::state(finding.state)) }
        th scope="row" { (finding.check.as_str()) @if !finding.subject.is_empty() { " " code { (finding.subject) } } }
        td { (&finding.seen) }
        td { (&finding.needed) }
        td { (layout::next(visit, &finding.next)) }
    }
}
