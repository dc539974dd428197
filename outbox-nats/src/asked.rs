//! What the processes of a consumer have asked for, as its durable on the server says.
//!
//! A durable's filter may be wider than what was asked for: servers before 2.10 take one filter, in fenced streams all event types of an aggregate share
//! a subject, and numbered aggregates come whole. So the event types stand in the durable's description as well, which old servers keep too:
//! `Reads events for an inbox. [asked for: order.placed, order.shipped]`.
//!
//! Invariants: the list only grows, but by an operator's hand; who adds to it, or finds it written, waits for [`SETTLES`] before what he wants can be delivered,
//! so that nobody still goes by what he read before ([`FRESH`]). A late write may undo an entry for up to [`HEALS`]; nobody relies on the lack of an entry for
//! as long. Absent here: writing the list (`consumer`) and reading it (`oracle`).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::subject::covers;

/// How long a process goes by what it has read; and so how often it reads.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// Time after which every process goes by what was written, also if the server that answers it is a little behind.
pub(crate) const SETTLES: Duration = Duration::from_millis(1_250);

/// Time in which a process sees that its entry is gone, and has written it again: [`FRESH`], and two requests.
pub(crate) const HEALS: Duration = Duration::from_secs(3);

/// Longest description that servers take, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 4096;

const OPENS: &str = "[asked for: ";
const CLOSES: &str = "]";
/// Stands for a list that would be too long.
const EVERYTHING: &str = "*";

/// What was asked for: event types, and filters of a durable that came without a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Asked(BTreeSet<String>);

impl Asked {
    pub(crate) fn new(event_types: impl IntoIterator<Item = String>) -> Self {
        Self(event_types.into_iter().collect())
    }

    /// Reads a durable. Without a list, those of its filters count that select one event type each.
    pub(crate) fn of(description: Option<&str>, filters: impl IntoIterator<Item = String>) -> Self {
        match description.and_then(list) {
            Some((_, list)) => Self::new(
                list.split(',')
                    .map(|item| item.trim().to_owned())
                    .filter(|item| !item.is_empty()),
            ),
            None => Self::new(
                filters
                    .into_iter()
                    .filter(|filter| !filter.ends_with(['*', '>']))
                    .flat_map(|filter| {
                        let event_type = of_one_type(&filter);
                        std::iter::once(filter).chain(event_type)
                    }),
            ),
        }
    }

    /// Whether a message is among it. An event type is told by its filter as well as by a subject.
    pub(crate) fn names(&self, event_type: &str, subject: &str) -> bool {
        self.0
            .iter()
            .any(|item| item == event_type || item == EVERYTHING || covers(item, subject))
    }

    /// Adds to it.
    pub(crate) fn with(mut self, event_types: impl IntoIterator<Item = String>) -> Self {
        self.0.extend(event_types);
        self
    }

    /// Writes it behind what else the description says.
    pub(crate) fn describe(&self, description: Option<&str>) -> String {
        let text = match description.and_then(list) {
            Some((text, _)) => text,
            None => description.unwrap_or("Reads events for an inbox."),
        };
        let items: Vec<&str> = self.0.iter().map(String::as_str).collect();
        let write = |items: &str| format!("{} {OPENS}{items}{CLOSES}", text.trim_end());
        let described = write(&items.join(", "));
        if described.len() <= DESCRIPTION_BYTES_MAX && !self.0.contains(EVERYTHING) {
            return described;
        }
        write(EVERYTHING)
    }
}

/// The event type that a filter `<prefix>.<aggregate type>.*.<event name>` selects. On a fenced stream its messages come on other subjects.
fn of_one_type(filter: &str) -> Option<String> {
    let mut tokens = filter.rsplit('.');
    let (name, any, aggregate) = (tokens.next()?, tokens.next()?, tokens.next()?);
    (any == "*").then(|| format!("{aggregate}.{name}"))
}

/// What stands before the list of a description, and the list.
fn list(description: &str) -> Option<(&str, &str)> {
    let (text, list) = description.rsplit_once(OPENS)?;
    let (list, _) = list.split_once(CLOSES)?;
    Some((text, list))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(items: &[&str]) -> Asked {
        Asked::new(items.iter().map(|item| (*item).to_owned()))
    }

    #[test]
    fn the_list_survives_what_else_a_description_says() {
        let first = asked(&["order.placed"]).describe(None);
        assert_eq!(first, "Reads events for an inbox. [asked for: order.placed]");
        let more = Asked::of(Some(&first), []).with(["order.cancelled".to_owned()]);
        let second = more.describe(Some(&first));
        assert_eq!(
            second,
            "Reads events for an inbox. [asked for: order.cancelled, order.placed]"
        );
        let by_hand = more.describe(Some("The warehouse [ask Ann]"));
        assert_eq!(
            by_hand,
            "The warehouse [ask Ann] [asked for: order.cancelled, order.placed]"
        );
        assert_eq!(Asked::of(Some(&by_hand), []), more);
    }

    #[test]
    fn without_a_list_exact_filters_count_and_wide_ones_do_not() {
        let filters = ["events.order.*.placed", "events.cart.*.*", "legacy.shipped"].map(str::to_owned);
        let asked = Asked::of(Some("Made by hand"), filters);
        assert!(asked.names("order.placed", "events.order.7.placed"));
        assert!(asked.names("order.shipped", "legacy.shipped"));
        assert!(!asked.names("order.cancelled", "events.order.7.cancelled"));
        assert!(!asked.names("cart.added", "events.cart.7.added"));
        assert_eq!(Asked::of(None, [">".to_owned()]), Asked::default());
    }

    #[test]
    fn an_empty_list_is_a_list() {
        let filters = ["events.order.*.placed".to_owned()];
        assert_eq!(Asked::of(Some("[asked for: ]"), filters), Asked::default());
    }

    #[test]
    fn a_list_that_is_too_long_stands_for_everything() {
        let types = (0..200).map(|n| format!("order.with_a_rather_long_name_{n}"));
        let described = Asked::new(types).describe(None);
        assert_eq!(described, "Reads events for an inbox. [asked for: *]");
        let read = Asked::of(Some(&described), []).with(["a.b".to_owned()]);
        assert!(read.names("whatever", "events.x"));
        assert_eq!(read.describe(Some(&described)), described);
    }
}
