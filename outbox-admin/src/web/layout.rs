//! The frame of all pages, and the pieces that several have.

use maud::{DOCTYPE, Markup, html};
use outbox_core::MessageStatus;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

use super::visit::{Page, Visit};
pub(super) use crate::words::in_words as duration;
use crate::{Command, Holds, Next, Reason, State};

/// The pages that the menu names.
const MENU: &[(&str, &str)] = &[
    ("/", "Overview"),
    ("/messages", "Messages"),
    ("/dead-letters", "Dead letters"),
    ("/consumers", "Consumers"),
    ("/doctor", "Doctor"),
    ("/audit", "Audit"),
];

/// A page in its frame.
pub(super) fn page(visit: &Visit, page: &Page) -> Markup {
    let name = &visit.site.name;
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
                    script src=(visit.link("/assets/refresh.js", &[])) defer {}
                    noscript { meta http-equiv="refresh" content="10"; }
                }
            }
            body {
                a.skip href="#content" { "Skip to the content" }
                header {
                    a.name href=(visit.link("/", &[])) { span.mark aria-hidden="true" {} (name) }
                    nav aria-label="Pages" {
                        @for (path, title) in MENU {
                            a href=(visit.link(path, &[])) aria-current=[(visit.path == *path).then_some("page")] { (title) }
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

/// The next step: a command, and advice in words.
pub(super) fn next(visit: &Visit, next: &Next) -> Markup {
    html! {
        @if let Some(command) = &next.command { (self::command(visit, command)) }
        @if let Some(advice) = &next.advice { " " span.advice { (advice) } }
    }
}

/// A command, as a link to the page that does the same if there is one.
pub(super) fn command(visit: &Visit, command: &Command) -> Markup {
    let values: Vec<&str> = command
        .arguments()
        .iter()
        .map(|(_, value)| value.as_str())
        .collect();
    let link = match (command.literal(), values.as_slice()) {
        ("outbox status" | "outbox relay list" | "outbox relay list -o wide" | "outbox pause --list", []) => {
            Some(visit.link("/", &[]))
        }
        ("outbox doctor", []) => Some(visit.link("/doctor", &[])),
        ("outbox list --status dead", []) => Some(visit.link("/messages", &[("status", "dead")])),
        ("outbox consumers list" | "outbox consumers list --forecast", [])
        | ("outbox consumers lag", [_]) => Some(visit.link("/consumers", &[])),
        ("outbox dead-letters list" | "outbox dead-letters groups", [name]) => {
            Some(visit.link("/dead-letters", &[("consumer", name)]))
        }
        ("outbox retry --skip", [id]) => Some(visit.link("/change", &[("change", "skip"), ("id", id)])),
        ("outbox retry", [id]) => Some(visit.link("/change", &[("change", "retry"), ("id", id)])),
        ("outbox resume", []) => Some(visit.link("/change", &[("change", "unpause")])),
        ("outbox resume", [of]) => Some(match command.arguments() {
            [(Some(_), _)] => visit.link("/change", &[("change", "unpause"), ("aggregate_type", of)]),
            _ => visit.link("/change", &[("change", "resume"), ("aggregate", of)]),
        }),
        ("outbox why" | "outbox show", [id]) if Uuid::parse_str(id).is_ok() => {
            Some(visit.link(&format!("/messages/{id}"), &[]))
        }
        ("outbox why", [of]) => Some(visit.link("/aggregate", &[("of", of)])),
        ("outbox consumers resume", [name]) => {
            let query = [("change", "resume-consumer"), ("consumer", *name)];
            Some(visit.link("/change", &query))
        }
        _ => None,
    };
    let called = command.called_as(&visit.site.program);
    html! {
        @match link {
            Some(link) => a.next href=(link) { code { (called) } },
            None => code.next { (called) },
        }
    }
}

/// Whether the causes of failures still hold: each with its sentence and the next step.
pub(super) fn causes(visit: &Visit, items: &[Cause]) -> Markup {
    html! {
        @if !items.is_empty() {
            h2 { "Does the cause still hold?" }
            ul.reasons {
                @for cause in items {
                    @let class = match cause.holds {
                        Holds::Still => "stuck",
                        Holds::Unknown => "idle",
                        Holds::Gone => "well",
                    };
                    li {
                        span class={ "state " (class) } { (cause.holds.as_str()) } " " (cause.what) " "
                        @if cause.holds != Holds::Gone { (next(visit, &cause.next)) }
                    }
                }
            }
        }
    }
}

/// The cause of a failure in a preview.
pub(super) struct Cause {
    pub(super) holds: Holds,
    pub(super) what: String,
    pub(super) next: Next,
}

/// What could not be looked at.
pub(super) fn not_seen(unseen: &str) -> Markup {
    html! { p.note { "Not seen: " (unseen) } }
}

/// A link to an aggregate.
pub(super) fn aggregate(visit: &Visit, aggregate_type: &str, id: &str) -> Markup {
    let name = format!("{aggregate_type}/{id}");
    html! {
        a href=(visit.link("/aggregate", &[("of", &name)])) { (name) }
    }
}

/// The status of a message as a word with a colour.
pub(super) fn status(status: MessageStatus) -> Markup {
    let class = match status {
        MessageStatus::Dead => "stuck",
        MessageStatus::Waiting => "degraded",
        MessageStatus::Published | MessageStatus::Logged => "well",
        MessageStatus::Pending => "idle",
    };
    html! { span class={ "state " (class) } { (status.as_str()) } }
}

/// A time in UTC, to the second.
pub(super) fn time(time: OffsetDateTime) -> Markup {
    let machine = time_text(time);
    let text = machine.replacen('T', " ", 1).trim_end_matches('Z').to_owned();
    html! { time datetime=(machine) { (text) } }
}

/// The same as programs read it.
pub(super) fn time_text(time: OffsetDateTime) -> String {
    let form = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    let text = time.to_offset(UtcOffset::UTC).format(&form);
    // A year that has no four digits only comes from a damaged row.
    text.unwrap_or_else(|_| time.to_string())
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
