//! Maintains the list of event types that the processes of a consumer have requested. The list is
//! in the description of the durable consumer.
//!
//! The durable's filters may select more event types: on servers before 2.10, in strong mode, and
//! if a consumer counts the messages of an aggregate. Example of a description:
//!
//! `Reads events for an inbox. [asked for: order.placed, order.shipped]`
//!
//! If the event types exceed 4 KiB, the list is `*`.
//!
//! Invariants: only an operator removes an entry. A process waits for [`SETTLES`] before messages
//! of its event types may be delivered. By then, all processes have read its entry in the list
//! ([`FRESH`]). A late write of another program may remove an entry from the list for up to
//! [`HEALS`]. Processes treat an entry as removed only after this time.

pub(crate) mod cache;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::stream::subject::covers;

/// The interval between readings of the list, and how long a process relies on a reading.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// Time after which every process has read a change of the list, even from a lagging server.
pub(crate) const SETTLES: Duration = Duration::from_millis(1_250);

/// Time in which a process restores its missing entry: [`FRESH`] plus two requests.
pub(crate) const HEALS: Duration = Duration::from_secs(3);

pub(crate) const DESCRIPTION_BYTES_MAX: usize = 4096;

const OPENS: &str = "[asked for: ";
const CLOSES: &str = "]";
const EVERYTHING: &str = "*";

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Asked(BTreeSet<String>);

impl Asked {
    pub(crate) fn new(event_types: impl IntoIterator<Item = String>) -> Self {
        Self(event_types.into_iter().collect())
    }

    /// Reads the list from a description. Without a list, filters for a single event type replace
    /// the list.
    pub(crate) fn of(description: Option<&str>, filters: impl IntoIterator<Item = String>) -> Self {
        match description.and_then(list) {
            Some((_, list)) => Self::new(
                list.split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .map(str::to_owned),
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

    pub(crate) fn names(&self, event_type: &str, subject: &str) -> bool {
        self.is_everything()
            || self.0.contains(event_type)
            // A list item is a filter of subjects or, as `order.*`, a selection of event types.
            || self.0.iter().any(|item| covers(item, subject) || covers(item, event_type))
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.0.contains(EVERYTHING)
    }

    pub(crate) fn with(mut self, event_types: impl IntoIterator<Item = String>) -> Self {
        self.0.extend(event_types);
        self
    }

    pub(crate) fn describe(&self, description: Option<&str>) -> String {
        let text = match description.and_then(list) {
            Some((text, _)) => text,
            None => description.unwrap_or("Reads events for an inbox."),
        };
        let write = |list: &str| format!("{} {OPENS}{list}{CLOSES}", text.trim_end());
        if self.is_everything() {
            return write(EVERYTHING);
        }
        let items: Vec<&str> = self.0.iter().map(String::as_str).collect();
        let described = write(&items.join(", "));
        match described.len() <= DESCRIPTION_BYTES_MAX {
            true => described,
            false => write(EVERYTHING),
        }
    }
}

fn of_one_type(filter: &str) -> Option<String> {
    let mut tokens = filter.rsplit('.');
    let (name, any, aggregate) = (tokens.next()?, tokens.next()?, tokens.next()?);
    (any == "*").then(|| format!("{aggregate}.{name}"))
}

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
    fn list_survives_other_text_in_the_description() {
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
    fn without_a_list_only_exact_filters_count() {
        let filters = ["events.order.*.placed", "events.cart.*.*", "legacy.shipped"].map(str::to_owned);
        let asked = Asked::of(Some("Made by hand"), filters);
        assert!(asked.names("order.placed", "events.order.7.placed"));
        assert!(asked.names("order.shipped", "legacy.shipped"));
        assert!(!asked.names("order.cancelled", "events.order.7.cancelled"));
        assert!(!asked.names("cart.added", "events.cart.7.added"));
        assert_eq!(Asked::of(None, [">".to_owned()]), Asked::default());
    }

    #[test]
    fn selection_is_requested_on_every_subject() {
        let described = asked(&["order.*"]).describe(None);
        let read = Asked::of(Some(&described), []);
        for subject in ["events.order.7.placed", "events.order.7", "legacy.orders"] {
            assert!(read.names("order.placed", subject), "{subject}");
            assert!(!read.names("cart.added", subject), "{subject}");
        }
        assert!(asked(&["*.*"]).names("cart.added", "events.cart.7"));
        assert!(!asked(&["order.placed"]).names("order.*", "events.order.*.*"));
    }

    #[test]
    fn an_empty_list_is_a_list() {
        let filters = ["events.order.*.placed".to_owned()];
        assert_eq!(Asked::of(Some("[asked for: ]"), filters), Asked::default());
    }

    #[test]
    fn too_long_list_means_everything() {
        let many = |count| Asked::new((0..count).map(|n| format!("order.with_a_rather_long_name_{n:03}")));
        let described = many(100).describe(None);
        assert_eq!(Asked::of(Some(&described), []), many(100));
        let described = many(200).describe(None);
        assert_eq!(described, "Reads events for an inbox. [asked for: *]");
        let read = Asked::of(Some(&described), []).with(["a.b".to_owned()]);
        assert!(read.names("whatever", "events.x"));
        assert_eq!(read.describe(Some(&described)), described);
    }
}
