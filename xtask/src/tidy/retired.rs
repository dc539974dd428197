//! Refuses words that were retired in favour of others, so that each concept keeps one word; docs/guide/glossary.md has the words in use.
//!
//! It checks the contents and the names of sources, documents, SQL and manifests, except for the changelog, which tells of the past,
//! the fixtures, which come from there, and this table.

use std::ops::Range;
use std::sync::LazyLock;

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

/// A word, its replacements, and its excuses: regular expressions of texts in which the word may stand all the same, each in every file or in the one
/// that it begins with (`file.rs: `).
///
/// A word in lower case is found inside identifiers too, between underscores; one with a capital also at the humps of `CamelCase`. Between slashes is
/// a regular expression.
#[rustfmt::skip]
const RETIRED: &[(&str, &str, &[&str])] = &[
    // Subscriber.
    ("SourceError", "SubscriberError", &[]),
    ("SourceConfig", "SubscriberConfig", &[]),
    ("JetStreamSource", "JetStreamSubscriber", &[]),
    ("MemorySource", "MemorySubscriber", &[]),
    (r"/\b(?:broker|nats|stream)\.source\(\)/", ".subscriber()", &[]),
    ("StreamSpec", "EventStream", &[]),
    ("provision_stream", "EventStream::provision", &[]),
    ("drain_until_idle", "drain", &[]),
    // Row id.
    (r"/\b(?:Column|Self)::Seq\b/", "RowId", &[]),
    // Stream sequence and sequence.
    ("inbox_positions", "inbox_sequences", &[]),
    ("keeps_positions", "keeps_sequences", &[]),
    ("keeper_of_position", "keeper_of_sequence", &[]),
    ("last_position", "last_stream_sequence", &[]),
    ("first_position", "first_stream_sequence", &[]),
    ("PositionKey", "SequenceKey", &[]),
    (r"/\bposition in the stream\b/", "stream sequence", &[]),
    (r"/\bstream positions?\b/", "stream sequence", &[]),
    // Dead letter.
    ("parked", "dead, dead letter", &[r#"northwind/ledger.rs: "parked""#, r#"tests/it/demo.rs: "parked""#, r#""purges-parked""#]),
    ("Parked", "Dead, DeadLetter", &[]),
    ("parking", "dead letter", &[]),
    ("parkings", "dead letters", &[]),
    ("on_parked", "on_dead_letter", &[]),
    (r"/\bpark(?:s|ed|ing)? (?:a|the|it|this|messages?)\b/", "dead-letter", &[]),
    ("ParkAndContinue", "Continue", &[]),
    ("GivenUp", "DeadDelivery, Dead", &[]),
    ("given_up", "dead, dead_letter", &[]),
    ("give_up", "dead_letter", &["give_up_(?:at|surplus)"]),
    (r"/\bwhat (?:was given up|a consumer gave up|consumers gave up)\b/", "dead letters", &[]),
    (r"/\bmessages? (?:that (?:was|were) )?given up\b/", "dead letter", &[]),
    // Blocked.
    ("outbox_holds", "outbox_blocks", &[]),
    ("outbox_held", "outbox_blocked", &[]),
    ("due_at", "blocked_until", &["is_due_at", "due_at_once", "probe_due_at"]),
    ("fetch_held", "fetch_waiting", &[]),
    ("HeldRequest", "WaitingRequest", &[]),
    ("HeldAggregate", "BlockedAggregate", &[]),
    ("held_aggregates", "blocked_aggregates", &[]),
    (r"/\b(?:held|hold on an?) aggregates?\b/", "blocked aggregate", &[]),
    (r"/\baggregates? (?:is|are|was|were) held\b/", "blocked", &[]),
    (r"/\b(?:a|the|no|its|each|due) hold\b/", "block", &[]),
    (r"/\b(?:Verdict|Look|Self)::Held\b|HeldTransaction|FetchingHeld/", "Blocked, Waiting, OpenTransaction", &[]),
    ("outbox_leases_held", "outbox_leases_owned", &[]),
    ("inbox_held", "inbox_blocked", &[]),
    // External.
    (r"/strategy = store\b/", "strategy = external", &[]),
    (r"/Strategy::Store\b/", "Strategy::External", &[]),
    (r"/InboxError::Store\b/", "InboxError::DedupStore", &[]),
    // In flight.
    ("in_hand", "in_flight", &[]),
    ("InHand", "InFlight", &[]),
    (r"/\bin hand\b/", "in flight", &[]),
    (r"/\bin the relay's hands?\b/", "in flight", &[]),
    // Poll and scan.
    ("walk", "scan, poll", &[]),
    ("walks", "scans", &[]),
    ("walked", "scanned", &[]),
    ("walking", "scanning", &[]),
    ("Walk", "Scan, Query", &[]),
    ("Walked", "ScannedRow", &[]),
    ("intake", "poller", &[]),
    ("Intake", "Poller", &[]),
    (r"/\bLook::/", "Query::", &[]),
    // Results of activities.
    ("Landed", "PublishDone", &[]),
    ("landed", "publish_done", &[]),
    // The runtime of the inbox.
    (r"/\bPass::/", "RunOutcome::", &[]),
    (r"/\bsuper::(?:pass|turn|item|feed|room|wind_up)\b/", "run, sequencing, routed, deliveries, capacity, shutdown", &[]),
    ("wind_up", "shut_down", &[]),
    ("BOOKS_MAX", "CORRECTIONS_MAX", &[]),
    // Dead letter, not letter.
    ("StoredLetter", "StoredDeadLetter", &[]),
    // Simulation and chaos.
    ("Fated", "CrashingRun", &[]),
    ("FatePlan", "CrashPlan", &[]),
    ("fate", "fault", &[]),
    ("Blow", "Fault", &[]),
    ("weather", "faults", &[]),
    ("Weather", "Fault", &[]),
    ("errands", "maintenance", &[]),
    ("heir", "successor", &[]),
    ("Victim", "Target", &[]),
    (r"/(?::\x20|<|\[|as )No[,>;\])]/", "MessageNo", &[]),
];

const ENDINGS: [&str; 4] = [".rs", ".md", ".sql", ".toml"];

/// Files that are not checked; folders named `fixtures` are not either.
const LEFT_OUT: [&str; 2] = ["CHANGELOG.md", "xtask/src/tidy/retired.rs"];

static WORDS: LazyLock<Vec<Word>> = LazyLock::new(|| RETIRED.iter().map(Word::new).collect());

/// All words as one automaton, which reads a file once. Without it, tidying takes half a minute in an unoptimised build.
static ALL: LazyLock<RegexSet> = LazyLock::new(|| {
    let set = RegexSetBuilder::new(RETIRED.iter().map(|(word, ..)| expression(word)))
        .unicode(false)
        .multi_line(true)
        .build();
    set.expect("each is a regular expression")
});

#[derive(Debug)]
struct Word {
    word: &'static str,
    instead: &'static str,
    /// Its first group is the word, without the characters beside it.
    regex: Regex,
    excuses: Vec<Excuse>,
}

/// A text in which a word may stand.
#[derive(Debug)]
struct Excuse {
    /// The end of the path of the only file in which the excuse counts.
    file: Option<&'static str>,
    regex: Regex,
}

impl Word {
    fn new(&(word, instead, excuses): &(&'static str, &'static str, &[&'static str])) -> Self {
        let excuse = |excuse: &&'static str| {
            let (file, text) = excuse
                .split_once(": ")
                .map_or((None, *excuse), |(file, text)| (Some(file), text));
            let regex = compile(text);
            Excuse { file, regex }
        };
        Self {
            word,
            instead,
            regex: compile(&expression(word)),
            excuses: excuses.iter().map(excuse).collect(),
        }
    }

    /// Whether the word is anywhere in this text of this file without an excuse.
    fn is_wrong(&self, path: &str, text: &str) -> bool {
        let excuses = self
            .excuses
            .iter()
            .filter(|excuse| excuse.file.is_none_or(|file| path.ends_with(file)));
        let excused: Vec<Range<usize>> = excuses
            .flat_map(|excuse| excuse.regex.find_iter(text.as_bytes()))
            .map(|found| found.range())
            .collect();
        self.places(text).any(|word| {
            !excused
                .iter()
                .any(|excuse| excuse.start <= word.start && word.end <= excuse.end)
        })
    }

    fn places(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let place = self.regex.captures_at(text.as_bytes(), from)?.get(1)?.range();
            // The character after a word may be the one before the next.
            from = place.end;
            Some(place)
        })
    }
}

fn expression(word: &str) -> String {
    let pattern = word.strip_prefix('/').and_then(|word| word.strip_suffix('/'));
    if let Some(pattern) = pattern {
        format!("({pattern})")
    } else if word.starts_with(|first: char| first.is_ascii_uppercase()) {
        format!("(?:^|[^A-Z])({word})(?:[^a-z]|$)")
    } else {
        format!("(?:^|[^0-9A-Za-z])({word})(?:[^0-9A-Za-z]|$)")
    }
}

fn compile(expression: &str) -> Regex {
    let regex = RegexBuilder::new(expression)
        .unicode(false)
        .multi_line(true)
        .build();
    regex.expect("the table has regular expressions")
}

/// One sentence for each retired word in a line, and in the name of the file.
pub(super) fn problems(path: &str, text: &str) -> Vec<String> {
    if !is_checked(path) {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for Word { word, instead, .. } in wrong_words(path, path) {
        problems.push(format!("{path}: `{word}` in its name was retired; say {instead}"));
    }
    // Most files have none of them.
    if ALL.is_match(text.as_bytes()) {
        for (line, text) in (1..).zip(text.lines()) {
            for Word { word, instead, .. } in wrong_words(path, text) {
                problems.push(format!(
                    "{path}:{line}: `{word}` was retired; say {instead} (docs/guide/glossary.md)"
                ));
            }
        }
    }
    problems
}

fn wrong_words(path: &str, text: &str) -> impl Iterator<Item = &'static Word> {
    let found = ALL.matches(text.as_bytes());
    let words = found.into_iter().map(|index| &WORDS[index]);
    words.filter(move |word| word.is_wrong(path, text))
}

fn is_checked(path: &str) -> bool {
    ENDINGS.iter().any(|ending| path.ends_with(ending))
        && !LEFT_OUT.contains(&path)
        && !path.split('/').any(|folder| folder == "fixtures")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        let problems = problems(path, text);
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problems:?}");
        }
    }

    #[test]
    fn the_table_is_sound() {
        assert_eq!(WORDS.len(), RETIRED.len());
        for Word { word, instead, .. } in WORDS.iter() {
            assert!(!word.is_empty() && !instead.is_empty(), "{word}: {instead}");
        }
    }

    #[test]
    fn a_retired_word_is_shown_with_its_line_and_its_replacement() {
        check(
            "README.md",
            "One.\nIt is parked.\n",
            &["README.md:2: `parked` was retired; say dead, dead letter"],
        );
    }

    #[test]
    fn words_are_found_in_identifiers_and_not_in_other_words() {
        check("a.rs", "let count_of_seq = 1;", &["a.rs:1: `seq`"]);
        check("a.rs", "let sequence = 1; let subseq = 2;", &[]);
        check("a.rs", "struct MyWalk;", &["a.rs:1: `Walk`"]);
        check("a.rs", "struct Walking; struct AWalker; struct XWalk;", &[]);
    }

    #[test]
    fn phrases_are_regular_expressions() {
        check("a.md", "the aggregates are held", &["a.md:1: `/"]);
        check("a.md", "the lock is held", &[]);
    }

    #[test]
    fn some_may_stand_where_they_mean_something_else() {
        check("a.rs", "fn probe_due_at() {}", &[]);
        check("a.rs", "Source code", &[]);
        check("examples/src/bin/northwind/ledger.rs", "(\"parked\", 0)", &[]);
        check(
            "examples/src/bin/northwind/letter.rs",
            "(\"parked\", 0)",
            &["examples/"],
        );
    }

    #[test]
    fn an_excuse_covers_only_its_own_match() {
        check("a.rs", "probe_due_at(due_at)", &["a.rs:1: `due_at`"]);
        check("a.rs", "due_at|probe_due_at", &["a.rs:1: `due_at`"]);
        check("a.md", "Source code of a Source", &["a.md:1: `Source`"]);
        check(
            "examples/tests/it/demo.rs",
            "\"parked\": parked",
            &["examples/tests/it/demo.rs:1: `parked`"],
        );
    }

    #[test]
    fn one_character_may_stand_between_two_words() {
        check("a.rs", "seq AS n, last_seq\"seq", &["a.rs:1: `seq`"]);
    }

    #[test]
    fn names_of_files_are_checked() {
        check(
            "outbox-core/src/walk.rs",
            "//! A module.",
            &["outbox-core/src/walk.rs: `walk` in its name"],
        );
    }

    #[test]
    fn the_past_is_left_alone() {
        for path in [
            "CHANGELOG.md",
            "a/tests/fixtures/tables/outbox.sql",
            "Cargo.lock",
            LEFT_OUT[1],
        ] {
            check(path, "parked", &[]);
        }
    }
}
