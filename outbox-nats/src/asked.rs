//! What the processes of a consumer have asked for, as its durable on the server says.
//!
//! A durable's filter may be wider than what was asked for: servers before 2.10 take one filter, in fenced streams all event types of an aggregate share
//! a subject, and numbered aggregates come whole. So the event types stand in the durable's description as well, which old servers keep too:
//! `Reads events for an inbox. [asked for: order.placed, order.shipped]`. Names that take more than a description holds are replaced by codes of 8 characters,
//! `[asked for: #89b1b62c0c1b4a51]`. More than about [`CODES_MAX`] event types are written as `*`.
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

/// Begins a run of codes.
const CODED: char = '#';
/// Hexadecimal digits of a code.
const CODE_DIGITS: usize = 8;
/// How many codes a description holds at least, unless an operator has written much else there.
pub(crate) const CODES_MAX: usize = 500;

/// What was asked for: event types, and filters of a durable that came without a list. A code stands here with a [`CODED`] of its own.
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

    /// Whether a message is among it. An event type is told by its filter as well as by a subject.
    pub(crate) fn names(&self, event_type: &str, subject: &str) -> bool {
        let is_coded = |name| self.0.contains(&code(name));
        self.is_everything()
            || self.0.contains(event_type)
            || is_coded(event_type)
            || is_coded(subject)
            || self.0.iter().any(|item| covers(item, subject))
    }

    /// Whether the list was too long to be written.
    pub(crate) fn is_everything(&self) -> bool {
        self.0.contains(EVERYTHING)
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

/// What an item of a list stands for.
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

/// Stands for a name where there is no room. 32 bits of FNV-1a: with 500 names on the list, one unknown type in ten million is taken for one of them.
fn code(name: &str) -> String {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{CODED}{hash:0width$x}", width = CODE_DIGITS)
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
