//! Refuses words that were given up for others, so that there stays one word per concept; docs/guide/glossary.md has the words that are in use.
//!
//! Checked are the contents and the names of sources, documents, SQL and manifests. Deliberately left out: the changelog, which tells of the past,
//! fixtures, which come from there, and this table.

use std::sync::LazyLock;

use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

/// A word, what to say instead, and where the word may stand all the same: a regular expression over `path: line`, or nothing.
///
/// A word in lower case is found inside identifiers too, between underscores; one with a capital also at the humps of `CamelCase`. Between slashes is
/// a regular expression.
#[rustfmt::skip]
const RETIRED: &[(&str, &str, &str)] = &[
    // Subscriber.
    ("Source", "Subscriber", r"Source (?:files?|code)\b"),
    ("SourceError", "SubscriberError", ""),
    ("SourceConfig", "SubscriberConfig", ""),
    ("JetStreamSource", "JetStreamSubscriber", ""),
    ("MemorySource", "MemorySubscriber", ""),
    (r"/\b(?:broker|nats|stream)\.source\(\)/", ".subscriber()", ""),
    // Row id.
    ("seq", "row_id", r#"last_seq"|seq AS n|seq_1_to_"#),
    ("seqs", "row_ids", ""),
    (r"/\b(?:Column|Self)::Seq\b/", "RowId", ""),
    // Stream sequence and sequence.
    ("inbox_positions", "inbox_sequences", ""),
    ("keeps_positions", "keeps_sequences", ""),
    ("keeper_of_position", "keeper_of_sequence", ""),
    ("last_position", "last_stream_sequence", ""),
    ("first_position", "first_stream_sequence", ""),
    ("PositionKey", "SequenceKey", ""),
    (r"/\bposition in the stream\b/", "stream sequence", ""),
    (r"/\bstream positions?\b/", "stream sequence", ""),
    // Dead letter.
    ("parked", "dead, dead letter", r#"northwind/ledger|tests/it/demo\.rs|"purges-parked""#),
    ("Parked", "Dead, DeadLetter", ""),
    ("parking", "dead letter", ""),
    ("parkings", "dead letters", ""),
    ("on_parked", "on_dead_letter", ""),
    (r"/\bpark(?:s|ed|ing)? (?:a|the|it|this|messages?)\b/", "dead-letter", ""),
    ("ParkAndContinue", "Continue", ""),
    ("GivenUp", "DeadDelivery, Dead", ""),
    ("given_up", "dead, dead_letter", ""),
    ("give_up", "dead_letter", "give_up_(?:at|surplus)"),
    (r"/\bwhat (?:was given up|a consumer gave up|consumers gave up)\b/", "dead letters", ""),
    (r"/\bmessages? (?:that (?:was|were) )?given up\b/", "dead letter", ""),
    // Blocked.
    ("outbox_holds", "outbox_blocks", ""),
    ("outbox_held", "outbox_blocked", ""),
    ("due_at", "blocked_until", "is_due_at|due_at_once|probe_due_at"),
    ("fetch_held", "fetch_waiting", ""),
    ("HeldRequest", "WaitingRequest", ""),
    ("HeldAggregate", "BlockedAggregate", ""),
    ("held_aggregates", "blocked_aggregates", ""),
    (r"/\b(?:held|hold on an?) aggregates?\b/", "blocked aggregate", ""),
    (r"/\baggregates? (?:is|are|was|were) held\b/", "blocked", ""),
    (r"/\b(?:a|the|no|its|each|due) hold\b/", "block", ""),
    (r"/\b(?:Verdict|Look|Self)::Held\b|HeldTransaction|FetchingHeld/", "Blocked, Waiting, OpenTransaction", ""),
    ("outbox_leases_held", "outbox_leases_owned", ""),
    ("inbox_held", "inbox_blocked", ""),
    // External.
    (r"/strategy = store\b/", "strategy = external", ""),
    (r"/Strategy::Store\b/", "Strategy::External", ""),
    (r"/InboxError::Store\b/", "InboxError::DedupStore", ""),
    // In flight.
    ("in_hand", "in_flight", ""),
    ("InHand", "InFlight", ""),
    (r"/\bin hand\b/", "in flight", ""),
    (r"/\bin the relay's hands?\b/", "in flight", ""),
    // Poll and scan.
    ("walk", "scan, poll", ""),
    ("walks", "scans", ""),
    ("walked", "scanned", ""),
    ("walking", "scanning", ""),
    ("Walk", "Scan, Query", ""),
    ("Walked", "ScannedRow", ""),
    ("intake", "poller", ""),
    ("Intake", "Poller", ""),
    (r"/\bLook::/", "Query::", ""),
    // Results of activities.
    ("Landed", "PublishDone", ""),
    ("landed", "publish_done", ""),
    // The runtime of the inbox.
    (r"/\bPass::/", "RunOutcome::", ""),
    (r"/\bsuper::(?:pass|turn|item|feed|letters|room|wind_up)\b/", "run, sequencing, routed, deliveries, retries, capacity, shutdown", ""),
    ("wind_up", "shut_down", ""),
    ("BOOKS_MAX", "CORRECTIONS_MAX", ""),
    // Dead letter, not letter.
    ("StoredLetter", "StoredDeadLetter", ""),
    // Simulation and chaos.
    ("Fated", "CrashingRun", ""),
    ("FatePlan", "CrashPlan", ""),
    ("fate", "fault", ""),
    ("Blow", "Fault", ""),
    ("weather", "faults", ""),
    ("Weather", "Fault", ""),
    ("errands", "maintenance", ""),
    ("heir", "successor", ""),
    ("Victim", "Target", ""),
    (r"/(?::\x20|<|\[|as )No[,>;\])]/", "MessageNo", ""),
];

const ENDINGS: [&str; 4] = [".rs", ".md", ".sql", ".toml"];

/// What is not checked, besides folders named `fixtures`.
const LEFT_OUT: [&str; 2] = ["CHANGELOG.md", "xtask/src/tidy/retired.rs"];

static WORDS: LazyLock<Vec<Word>> = LazyLock::new(|| RETIRED.iter().map(Word::new).collect());

/// The regular expressions of all words, to search a file once for all of them. One by one, or with the word boundaries of Unicode, takes a minute in an
/// unoptimised build.
static PATTERNS: LazyLock<RegexSet> = LazyLock::new(|| {
    let patterns = WORDS.iter().filter_map(|word| word.pattern.as_ref());
    let set = RegexSetBuilder::new(patterns.map(Regex::as_str))
        .unicode(false)
        .build();
    set.expect("each is a regular expression")
});

#[derive(Debug)]
struct Word {
    word: &'static str,
    instead: &'static str,
    pattern: Option<Regex>,
    allowed: Option<Regex>,
}

impl Word {
    fn new(&(word, instead, allowed): &(&'static str, &'static str, &'static str)) -> Self {
        let regex = |pattern: &str| {
            let regex = RegexBuilder::new(pattern).unicode(false).build();
            regex.expect("the table has regular expressions")
        };
        let pattern = word.strip_prefix('/').and_then(|word| word.strip_suffix('/'));
        Self {
            word,
            instead,
            pattern: pattern.map(regex),
            allowed: (!allowed.is_empty()).then(|| regex(allowed)),
        }
    }

    fn is_in(&self, text: &str) -> bool {
        if let Some(pattern) = &self.pattern {
            return pattern.is_match(text);
        }
        let is_camel = self.word.starts_with(|first: char| first.is_ascii_uppercase());
        text.match_indices(self.word).any(|(at, found)| {
            let before = text[..at].chars().next_back();
            let after = text[at + found.len()..].chars().next();
            if is_camel {
                !before.is_some_and(|before| before.is_ascii_uppercase())
                    && !after.is_some_and(|after| after.is_ascii_lowercase())
            } else {
                let is_inside =
                    |beside: Option<char>| beside.is_some_and(|beside| beside.is_ascii_alphanumeric());
                !is_inside(before) && !is_inside(after)
            }
        })
    }

    fn is_wrong(&self, path: &str, text: &str) -> bool {
        self.is_in(text)
            && !self
                .allowed
                .as_ref()
                .is_some_and(|allowed| allowed.is_match(&format!("{path}: {text}")))
    }
}

/// One sentence for each retired word in a line, and in the name of the file.
pub(super) fn problems(path: &str, text: &str) -> Vec<String> {
    if !is_checked(path) {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for Word { word, instead, .. } in WORDS.iter().filter(|word| word.is_wrong(path, path)) {
        problems.push(format!("{path}: `{word}` in its name was retired; say {instead}"));
    }
    let has_pattern = PATTERNS.is_match(text);
    // Most files have none of them.
    let is_found = |word: &&Word| match word.pattern {
        Some(_) => has_pattern,
        None => word.is_in(text),
    };
    let found: Vec<&Word> = WORDS.iter().filter(is_found).collect();
    for (index, line) in text.lines().enumerate() {
        for Word { word, instead, .. } in found.iter().filter(|word| word.is_wrong(path, line)) {
            let line = index + 1;
            problems.push(format!(
                "{path}:{line}: `{word}` was retired; say {instead} (docs/guide/glossary.md)"
            ));
        }
    }
    problems
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
