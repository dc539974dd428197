//! The frame of all pages, and shared elements.

use maud::{DOCTYPE, Markup, html};
use time::OffsetDateTime;
use uuid::Uuid;

use super::visit::{Page, Visit, link};
pub(super) use crate::admin::words::in_words as duration;
use crate::admin::words::utc;
use crate::admin::{Column, Columns, Command, Next, Reason, State};

const MENU: &[(&str, &str)] = &[
    ("/", "Overview"),
    ("/messages", "Messages"),
    ("/dead-letters", "Dead letters"),
];

pub(super) fn page(visit: &Visit, page: &Page) -> Markup {
    let name = &*visit.name;
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (page.title) " · " (name) }
                link rel="icon" type="image/svg+xml" href=(link("/assets/icon.svg", &[]));
                link rel="stylesheet" href=(link("/assets/style.css", &[]));
                @if page.is_live {
                    script src=(link("/assets/refresh.js", &[])) defer {}
                    noscript { meta http-equiv="refresh" content="10"; }
                }
            }
            body {
                a.skip href="#content" { "Skip to the content" }
                header {
                    a.name href=(link("/", &[])) { span.mark aria-hidden="true" {} (name) }
                    nav aria-label="Pages" {
                        @for (path, title) in MENU {
                            a href=(link(path, &[])) aria-current=[(visit.path == *path).then_some("page")] { (title) }
                        }
                    }
                }
                main id="content" {
                    h1 { (page.title) }
                    (page.body)
                }
            }
        }
    }
}

pub(super) fn state(state: State) -> Markup {
    status(&state.to_string())
}

pub(super) fn reasons(reasons: &[Reason]) -> Markup {
    html! {
        @if !reasons.is_empty() {
            ul.reasons {
                @for reason in reasons {
                    li { (state(reason.state)) " " (reason.what) " " (next(&reason.next)) }
                }
            }
        }
    }
}

pub(super) fn next(next: &Next) -> Markup {
    html! {
        @if let Some(command) = &next.command { (self::command(command)) }
        @if let Some(advice) = &next.advice { " " span.advice { (advice) } }
    }
}

pub(super) fn command(command: &Command) -> Markup {
    let link = page_of(command);
    let called = command.to_string();
    html! {
        @match link {
            Some(link) => a.next href=(link) { code { (called) } },
            None => code.next { (called) },
        }
    }
}

fn page_of(command: &Command) -> Option<String> {
    let values: Vec<&str> = command
        .arguments()
        .iter()
        .map(|(_, value)| value.as_str())
        .collect();
    Some(match (command.literal(), values.as_slice()) {
        (
            "outbox status"
            | "outbox relay list"
            | "outbox consumers list"
            | "outbox consumers list --forecast",
            [],
        ) => link("/", &[]),
        ("outbox list --status dead", []) => link("/messages", &[("status", "dead")]),
        ("outbox dead-letters list" | "outbox dead-letters groups", [name]) => {
            link("/dead-letters", &[("consumer", name)])
        }
        ("outbox dead-letters list", [name, group]) => {
            link("/dead-letters", &[("consumer", name), ("fingerprint", group)])
        }
        ("outbox why" | "outbox show", [id]) if Uuid::parse_str(id).is_ok() => {
            link(&format!("/messages/{id}"), &[])
        }
        ("outbox why", [of]) => link("/aggregate", &[("of", of)]),
        _ => return None,
    })
}

pub(super) fn not_seen(unseen: &str) -> Markup {
    html! { p.note { "Not checked: " (unseen) } }
}

pub(super) fn status(word: &str) -> Markup {
    let class = match word.split(',').next().unwrap_or_default() {
        "dead" | "dead-letter" | "stuck" | "unhealthy" => "stuck",
        "waiting" | "failed" | "degraded" | "recovering" => "degraded",
        "published" | "logged" | "handled" | "healthy" => "healthy",
        _ => "idle",
    };
    html! { span class={ "state " (class) } { (word) } }
}

pub(super) fn time(time: OffsetDateTime) -> Markup {
    html! { time { (utc(time)) } }
}

pub(super) fn table<'a, T: Columns>(caption: &str, rows: impl IntoIterator<Item = &'a T>) -> Markup {
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead { tr {
                    @for column in T::COLUMNS { th scope="col" { (title(column.name)) } }
                } }
                tbody { @for row in rows { tr {
                    @for column in T::COLUMNS { td { (cell(column, row)) } }
                } } }
            }
        }
    }
}

pub(super) fn facts<T: Columns>(value: &T) -> Markup {
    let is_known = |column: &&Column<T>| !(column.text)(value).is_empty();
    html! {
        dl.facts {
            @for column in T::COLUMNS.iter().filter(is_known) {
                dt { (title(column.name)) }
                dd { (cell(column, value)) }
            }
        }
    }
}

fn title(name: &str) -> String {
    capital(&name.replace('_', " "))
}

pub(super) fn capital(text: &str) -> String {
    let mut rest = text.chars();
    match rest.next() {
        Some(first) => first.to_uppercase().chain(rest).collect(),
        None => String::new(),
    }
}

fn cell<T>(column: &Column<T>, value: &T) -> Markup {
    let text = (column.text)(value);
    let command = column.shows.and_then(|shows| shows(value));
    let page = command.and_then(|command| page_of(&command));
    match (column.name, page) {
        (_, Some(page)) => html! { a href=(page) { (text) } },
        ("status" | "state" | "health", None) => status(&text),
        (_, None) => html! { (text) },
    }
}
