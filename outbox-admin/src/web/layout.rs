//! The frame of all pages, and the pieces that several have.

use std::time::Duration;

use maud::{DOCTYPE, Markup, html};
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

use super::visit::{Page, Visit};
use crate::{Reason, State};

/// The pages that the menu names.
const MENU: [(&str, &str); 7] = [
    ("/", "Overview"),
    ("/messages", "Messages"),
    ("/blocked", "Blocked"),
    ("/dead-letters", "Dead letters"),
    ("/consumers", "Consumers"),
    ("/relays", "Relays"),
    ("/audit", "Audit"),
];

/// A page in its frame.
pub(super) fn page(visit: &Visit, page: &Page) -> Markup {
    let name = &visit.app.name;
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (page.title) " · " (name) }
                link rel="icon" type="image/svg+xml" href=(visit.link("/assets/icon.svg", &[]));
                link rel="stylesheet" href=(visit.link("/assets/style.css", &[]));
                @if page.is_live {
                    script src=(visit.link("/assets/live.js", &[])) defer {}
                    noscript { meta http-equiv="refresh" content="10"; }
                }
            }
            body data-live=[page.is_live.then(|| visit.link("/live", &[]))] {
                a.skip href="#content" { "Skip to the content" }
                header {
                    strong.name { (name) }
                    nav aria-label="Pages" {
                        @for (path, title) in MENU {
                            a href=(visit.link(path, &[])) aria-current=[(visit.path == path).then_some("page")] { (title) }
                        }
                    }
                    span.who { (visit.access.user()) " (" (visit.access.role().as_str()) ")" }
                }
                main id="content" {
                    h1 { (page.title) }
                    (page.body)
                }
            }
        }
    }
}

/// A state as a word with a colour.
pub(super) fn state(state: State) -> Markup {
    html! { span class={ "state " (state.as_str()) } { (state.as_str()) } }
}

/// What is wrong, each with the page or the command that shows more.
pub(super) fn reasons(visit: &Visit, reasons: &[Reason]) -> Markup {
    html! {
        @if !reasons.is_empty() {
            ul.reasons {
                @for reason in reasons {
                    li { (state(reason.state)) " " (reason.what) " " (next(visit, &reason.next)) }
                }
            }
        }
    }
}

/// The next command, as a link to the page that does the same if there is one.
pub(super) fn next(visit: &Visit, command: &str) -> Markup {
    let words: Vec<&str> = command.split(' ').collect();
    let link = match words.as_slice() {
        ["outbox", "blocked", ..] => Some(visit.link("/blocked", &[])),
        ["outbox", "relays" | "partitions"] => Some(visit.link("/relays", &[])),
        ["outbox", "list", "--status", status] => Some(visit.link("/messages", &[("status", status)])),
        ["outbox", "consumers", "list"] => Some(visit.link("/consumers", &[])),
        ["outbox", "dead-letters", "list", "--consumer", name] => {
            Some(visit.link("/dead-letters", &[("consumer", name)]))
        }
        ["outbox", change @ ("retry" | "skip"), id] => {
            Some(visit.link("/change", &[("change", change), ("id", id)]))
        }
        ["outbox", "resume", ..] => {
            let aggregate = command.trim_start_matches("outbox resume ");
            Some(visit.link("/change", &[("change", "resume"), ("aggregate", aggregate)]))
        }
        _ => None,
    };
    html! {
        @match link {
            Some(link) => a.next href=(link) { code { (command) } },
            None => code.next { (command) },
        }
    }
}

/// A link to an aggregate.
pub(super) fn aggregate(visit: &Visit, aggregate_type: &str, id: &str) -> Markup {
    let name = format!("{aggregate_type}/{id}");
    html! { a href=(visit.link("/aggregate", &[("of", &name)])) { (name) } }
}

/// A time in UTC, to the second.
pub(super) fn time(time: OffsetDateTime) -> Markup {
    let form = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    let text = time.to_offset(UtcOffset::UTC).format(&form);
    // A year that has no four digits only comes from a damaged row.
    let text = text.unwrap_or_else(|_| time.to_string());
    html! { time datetime=(text.replace(' ', "T") + "Z") { (text) } }
}

/// A duration as people say it.
pub(super) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A value that may be missing.
pub(super) fn any(value: Option<impl std::fmt::Display>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

/// A table that scrolls by itself where the window is narrow.
pub(super) fn table(caption: &str, columns: &[&str], rows: &[Markup]) -> Markup {
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead { tr { @for column in columns { th scope="col" { (column) } } } }
                tbody { @for row in rows { tr { (row) } } }
            }
        }
    }
}
