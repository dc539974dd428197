//! The overview: how the outbox stands in a sentence, what is wrong, and the numbers behind it.

use axum::response::Response;
use maud::{Markup, html};
use serde::Serialize;

use crate::web::sampler::{Sample, latest};
use crate::web::visit::{Page, Problem, Visit};
use crate::web::{layout, pages};
use crate::words::counted;

pub(in crate::web) async fn get(visit: Visit) -> Response {
    let made = make(&visit).await;
    visit.respond(made)
}

async fn make(visit: &Visit) -> Result<Page, Problem> {
    let sample = latest(&visit.app).await?;
    let mut page = Page::new("Overview", &*sample, body(visit, &sample));
    page.is_live = true;
    Ok(page)
}

/// The values that the page shows live, as texts: what the server writes into it, and what the script replaces there.
#[derive(Debug, Serialize)]
pub(super) struct Values {
    pub(super) state: &'static str,
    sentence: String,
    pending: String,
    waiting: String,
    oldest: String,
    dead: String,
    halted: String,
    blocked: String,
    relays: String,
    partitions: String,
    /// Names what is wrong without its numbers, so that the page is made again only if something else is wrong.
    reasons: String,
}

/// Counts of messages stop at this number.
const COUNT_MAX: u64 = 1_000_000;

impl Values {
    pub(super) fn new(sample: &Sample) -> Self {
        let status = &sample.status;
        let backlog = &status.backlog;
        let count = |count: u64| match count {
            COUNT_MAX.. => format!("{COUNT_MAX} or more"),
            count => count.to_string(),
        };
        let key = |reason: &crate::Reason| format!("{} {}", reason.state.as_str(), reason.next);
        Self {
            state: status.state.as_str(),
            sentence: sentence(sample),
            pending: count(backlog.pending),
            waiting: count(backlog.waiting),
            oldest: layout::any(backlog.oldest_pending.map(layout::duration)),
            dead: count(backlog.dead_letters),
            halted: count(backlog.halted_aggregates),
            blocked: count(backlog.blocked_aggregates),
            relays: status.relays.alive.to_string(),
            partitions: format!("{} of {}", status.partitions.owned, status.partitions.all),
            reasons: status.reasons.iter().map(key).collect::<Vec<_>>().join("; "),
        }
    }
}

/// How it stands: the worst that is wrong, or what is going on.
fn sentence(sample: &Sample) -> String {
    let status = &sample.status;
    match status.reasons.as_slice() {
        [] => {
            let pending = counted(status.backlog.pending, "message is", "messages are");
            format!("Nothing is wrong; {pending} to be published.")
        }
        [first] => format!("{}.", capital(&first.what)),
        [first, others @ ..] => {
            let more = counted(others.len() as u64, "more thing is", "more things are");
            format!("{}; {more} wrong.", capital(&first.what))
        }
    }
}

fn capital(text: &str) -> String {
    let mut rest = text.chars();
    match rest.next() {
        Some(first) => first.to_uppercase().chain(rest).collect(),
        None => String::new(),
    }
}

fn body(visit: &Visit, sample: &Sample) -> Markup {
    let values = Values::new(sample);
    let counts = [
        ("pending", "To be published", &values.pending),
        ("waiting", "Of those, waiting", &values.waiting),
        ("oldest", "Oldest that is due", &values.oldest),
        ("dead", "Dead letters", &values.dead),
        ("halted", "Halted aggregates", &values.halted),
        ("blocked", "Blocked aggregates", &values.blocked),
        ("relays", "Relays alive", &values.relays),
        ("partitions", "Partitions owned", &values.partitions),
    ];
    let relays = sample.status.relays;
    html! {
        p.sentence role="status" data-reasons=(values.reasons) {
            span class={ "state " (values.state) } data-state data-value="state" { (values.state) }
            " " span data-value="sentence" { (values.sentence) }
        }
        (layout::reasons(visit, &sample.status.reasons))
        dl.counts {
            @for (name, title, value) in counts {
                div { dt { (title) } dd data-value=(name) { (value) } }
            }
        }
        h2 { "Relays" }
        p {
            (counted(relays.alive.into(), "relay is alive", "relays are alive")) ": "
            (relays.fit) " fit, " (relays.unproven) " unproven, " (relays.trying) " trying, " (relays.ailing) " ailing. "
            a href=(visit.link("/relays", &[])) { "Relays and partitions" }
        }
        h2 { "Consumers" }
        (pages::consumers::table(visit, sample))
        p { "Read at " (layout::time(sample.sampled_at)) " UTC." }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    #[test]
    fn a_sentence_begins_with_a_capital_whatever_its_first_letter_is() {
        assert_eq!(capital("no relay is alive"), "No relay is alive");
        assert_eq!(capital("élan"), "Élan");
        assert_eq!(capital("3 of 4"), "3 of 4");
        assert_eq!(capital(""), "");
    }

    #[test]
    fn states_are_words_that_the_style_sheet_knows() {
        let style = include_str!("../assets/style.css");
        for state in [State::Well, State::Degraded, State::Stuck] {
            assert!(
                style.contains(&format!(".{} {{ color:", state.as_str())),
                "{state:?}"
            );
        }
    }
}
