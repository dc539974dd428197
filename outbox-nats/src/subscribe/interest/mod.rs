//! Keeps the list of event types that the processes of a consumer have asked for, in the description of its durable.
//!
//! The filters of a durable do not tell, because they may select more: servers before 2.10 take one filter only, all event types of an aggregate share a
//! subject in strong mode, and consumers that count an aggregate's messages take all of them. So the description of the durable lists the event types. Old
//! servers keep it too. It reads `Reads events for an inbox. [asked for: order.placed, order.shipped]`. If the names do not fit, codes of 8 characters replace
//! them: `[asked for: #89b1b62c0c1b4a51]`. If even the codes of more than about [`CODES_MAX`] event types do not fit, the list is `*`.
//!
//! Invariants: only an operator's hand removes an entry. A process that adds an entry, or that finds its entry there already, waits for [`SETTLES`] before
//! messages of this type may be delivered; by then no process relies on an older reading ([`FRESH`]). A late write of another program may undo an entry for up
//! to [`HEALS`]; no process relies on a missing entry before that time is over.

pub(crate) mod cache;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::stream::subject::covers;

/// How long a process relies on its last reading, and so how often it reads.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// Time after which every process has read a change, even from a server that is a little behind.
pub(crate) const SETTLES: Duration = Duration::from_millis(1_250);

/// Time in which a process notices that its entry is gone and writes it again: [`FRESH`], and two requests.
pub(crate) const HEALS: Duration = Duration::from_secs(3);

/// Longest description that servers take, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 4096;

const OPENS: &str = "[asked for: ";
const CLOSES: &str = "]";
/// The list when even codes would be too long.
const EVERYTHING: &str = "*";

/// Begins a run of codes.
const CODED: char = '#';
/// Hexadecimal digits of a code.
const CODE_DIGITS: usize = 8;
/// Number of codes that a description holds at least, unless an operator has written a long text there.
pub(crate) const CODES_MAX: usize = 500;

/// The list: event types, and the filters of a durable that has no list. Each code is an item that begins with [`CODED`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Asked(BTreeSet<String>);

impl Asked {
    pub(crate) fn new(event_types: impl IntoIterator<Item = String>) -> Self {
        Self(event_types.into_iter().collect())
    }

    /// Reads the list of a durable. If it has none, the filters that select a single event type stand for it.
    pub(crate) fn of(description: Option<&str>, filters: impl IntoIterator<Item = String>) -> Self {
        match description.and_then(list) {
            Some((_, list)) => Self::new(
                list.split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .flat_map(items),
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

    /// Whether the list covers a message, by its event type or by its subject.
    pub(crate) fn names(&self, event_type: &str, subject: &str) -> bool {
        let is_coded = |name| self.0.contains(&code(name));
        self.is_everything()
            || self.0.contains(event_type)
            || is_coded(event_type)
            || is_coded(subject)
            // A filter names subjects; `order.*` is also a selection of event types.
            || self.0.iter().any(|item| covers(item, subject) || covers(item, event_type))
    }

    /// Whether the list was too long to be written.
    pub(crate) fn is_everything(&self) -> bool {
        self.0.contains(EVERYTHING)
    }

    /// Adds event types.
    pub(crate) fn with(mut self, event_types: impl IntoIterator<Item = String>) -> Self {
        self.0.extend(event_types);
        self
    }

    /// Writes the list behind the rest of the description.
    pub(crate) fn describe(&self, description: Option<&str>) -> String {
        let text = match description.and_then(list) {
            Some((text, _)) => text,
            None => description.unwrap_or("Reads events for an inbox."),
        };
        let write = |asked: &Self| format!("{} {OPENS}{}{CLOSES}", text.trim_end(), asked.list());
        let everything = Self::new([EVERYTHING.to_owned()]);
        if self.is_everything() {
            return write(&everything);
        }
        // A filter with wildcards can be compared with subjects only as it is.
        let code = |item: &String| match item.starts_with(CODED) || item.ends_with('>') || item.contains('*')
        {
            true => item.clone(),
            false => code(item),
        };
        let coded = Self(self.0.iter().map(code).collect());
        let mut forms = [write(self), write(&coded)].into_iter();
        let fitting = forms.find(|form| form.len() <= DESCRIPTION_BYTES_MAX);
        fitting.unwrap_or_else(|| write(&everything))
    }

    /// Names and filters with commas between, then the codes in one run.
    fn list(&self) -> String {
        let (codes, mut items): (Vec<&str>, Vec<&str>) = self
            .0
            .iter()
            .map(String::as_str)
            .partition(|item| item.starts_with(CODED));
        let run = format!("{CODED}{}", codes.concat().replace(CODED, ""));
        if !codes.is_empty() {
            items.push(&run);
        }
        items.join(", ")
    }
}

/// Splits an item into the codes that it holds; any other item is one by itself.
fn items(item: &str) -> Vec<String> {
    let Some(run) = item.strip_prefix(CODED) else {
        return vec![item.to_owned()];
    };
    let digits: Vec<char> = run.chars().collect();
    let codes = digits.chunks(CODE_DIGITS);
    codes
        .map(|digits| std::iter::once(&CODED).chain(digits).collect())
        .collect()
}

/// The code of a name: 32 bits of FNV-1a. With 500 names on the list, one unknown type in ten million is mistaken for one of them.
fn code(name: &str) -> String {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{CODED}{hash:0width$x}", width = CODE_DIGITS)
}

/// The event type that a filter `<prefix>.<aggregate type>.*.<event name>` selects. In strong mode its messages arrive on other subjects.
fn of_one_type(filter: &str) -> Option<String> {
    let mut tokens = filter.rsplit('.');
    let (name, any, aggregate) = (tokens.next()?, tokens.next()?, tokens.next()?);
    (any == "*").then(|| format!("{aggregate}.{name}"))
}

/// Splits a description into the text before the list and the list.
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
    fn a_selection_of_event_types_is_asked_for_on_every_subject() {
        let described = asked(&["order.*"]).describe(None);
        let read = Asked::of(Some(&described), []);
        for subject in ["events.order.7.placed", "events.order.7", "legacy.orders"] {
            assert!(read.names("order.placed", subject), "{subject}");
            assert!(!read.names("cart.added", subject), "{subject}");
        }
        assert!(asked(&["*.*"]).names("cart.added", "events.cart.7"));
        // One event type does not ask for all of its aggregate type.
        assert!(!asked(&["order.placed"]).names("order.*", "events.order.*.*"));
        let codes = many(CODES_MAX - 5).with(["order.*".to_owned()]).describe(None);
        assert!(Asked::of(Some(&codes), []).names("order.placed", "events.order.7"));
    }

    #[test]
    fn an_empty_list_is_a_list() {
        let filters = ["events.order.*.placed".to_owned()];
        assert_eq!(Asked::of(Some("[asked for: ]"), filters), Asked::default());
    }

    fn many(count: usize) -> Asked {
        Asked::new((0..count).map(|n| format!("order.with_a_rather_long_name_{n}")))
    }

    #[test]
    fn a_list_whose_names_are_too_long_has_codes() {
        let operators = asked(&["shop.*.placed", "shop.legacy"]);
        let described = operators.with(many(CODES_MAX - 5).0).describe(None);
        assert!(described.len() <= DESCRIPTION_BYTES_MAX, "{described}");
        let read = Asked::of(Some(&described), []);
        for n in 0..CODES_MAX - 5 {
            assert!(read.names(&format!("order.with_a_rather_long_name_{n}"), "x"));
        }
        assert!(read.names("a.b", "shop.7.placed") && read.names("a.b", "shop.legacy"));
        assert!(!read.names("order.cancelled", "events.order.7.cancelled"));
        assert_eq!(read.describe(Some(&described)), described);
        let read = Asked::of(Some("[asked for: order.placed, #e40c292cb1d17b3d]"), []);
        assert!(read.names("a", "x") && read.names("order.placed", "x") && !read.names("b", "x"));
        // Cut off by hand.
        assert!(!Asked::of(Some("[asked for: #e40c292]"), []).names("a", "x"));
    }

    #[test]
    fn a_list_that_is_too_long_for_codes_stands_for_everything() {
        let described = many(CODES_MAX + 10).describe(None);
        assert_eq!(described, "Reads events for an inbox. [asked for: *]");
        let read = Asked::of(Some(&described), []).with(["a.b".to_owned()]);
        assert!(read.names("whatever", "events.x"));
        assert_eq!(read.describe(Some(&described)), described);
        assert!(!many(CODES_MAX).is_everything());
    }
}
