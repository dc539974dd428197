//! Limits on the language of comments and of hand-written pages: plain words, short sentences.
//!
//! A unit is a page, or a crate with its whole-line comments. Sentences of fewer than four words do
//! not count. A unit of any size may have [`FREE`] hits of each kind; a larger unit may have more,
//! by the kind's hits per 10,000 words.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use super::guarantees;

/// Kind, hits per 10,000 words, phrases. `a/b c` is a short form of `a c` and `b c`.
const KINDS: [(&str, f64, &str); 4] = [
    (
        "pronoun in place of a noun",
        10.0,
        "those, whose, that of, one/ones that/which/who/of, of which/whom, what it/they/is/was/are/were/has/had/\
         have/may/must/can/could/would/stands/comes/came/goes/went/waits/remains/follows",
    ),
    (
        "person in place of a component or a role",
        1.5,
        "nobody/somebody/whoever/anybody/everybody/no-one/someone/anyone, no one",
    ),
    (
        "software that speaks or thinks",
        18.0,
        "say/says/said/tell/tells/told/ask/asks/asked/know/knows/believe/believes/forget/forgets/forgot/promises/\
         promised/notice/notices/noticed/remember/remembers, known to",
    ),
    (
        "unusual phrase",
        3.0,
        "anew/beside/shall/bear/bears/hardly/lay/lays/mend/mends/mended/torment/torments/tormented/weather/errand/\
         errands, stand/stands in/on/at/for/as/still/behind/before, taken down, by chance, of its/one's/their own, \
         in trouble, is/was/be away, gone wrong, came/comes to, take/takes/taken effect, without a word, all the \
         same, at/in/by hand, give/gives/given/gave back, give/gives/given up, lie/lies behind",
    ),
];

/// Hits of each kind, and long sentences, that a unit of any size may have.
const FREE: usize = 2;

const SENTENCE_WORDS_MIN: usize = 4;
const SENTENCE_WORDS_MAX: usize = 25;
const LONG_SENTENCES_MAX: f64 = 0.1;
const COMMENT_COLUMNS_MAX: usize = 100;
const TEST_NAME_MAX: usize = 60;
const COMMENT_WORDS_MAX: usize = 90_000;
const PAGE_WORDS_MAX: usize = 45_000;
const PAGE_BYTES_MAX: usize = 280_000;

/// Generated pages; a test compares them with the crates' constants and the command line parser.
const GENERATED: &str = "docs/reference/";

const CODE: [&str; 4] = [".rs", ".go", ".cs", ".java"];

/// A phrase: index of its kind, and its words after the first.
type Phrase = (usize, Vec<&'static str>);

static PHRASES: LazyLock<HashMap<&str, Vec<Phrase>>> = LazyLock::new(|| {
    let mut by_first: HashMap<_, Vec<_>> = HashMap::new();
    for (kind, (_, _, phrases)) in KINDS.iter().enumerate() {
        for mut words in phrases.split(", ").map(|phrase| phrase.split(' ')) {
            for first in words.next().into_iter().flat_map(|firsts| firsts.split('/')) {
                let phrases = by_first.entry(first).or_default();
                phrases.push((kind, words.clone().collect()));
            }
        }
    }
    by_first
});

#[derive(Debug, Default)]
pub(super) struct Language {
    units: BTreeMap<String, Unit>,
    page_bytes: usize,
    problems: Vec<String>,
}

#[derive(Debug, Default)]
struct Unit {
    words: usize,
    sentences: usize,
    long: Vec<String>,
    hits: [Vec<String>; KINDS.len()],
}

impl Language {
    pub(super) fn read(&mut self, path: &str, text: &str) {
        let is_page = path.ends_with(".md") && !path.starts_with(GENERATED);
        if !is_page && !CODE.iter().any(|end| path.ends_with(end)) {
            return;
        }
        let lines = prose(is_page, text);
        let name = path.split('/').next().filter(|_| !is_page).unwrap_or(path);
        let unit = self.units.entry(name.to_owned()).or_default();
        let mut first = 1;
        for paragraph in lines.chunk_by(|_, next| !next.is_empty() && !starts_paragraph(next)) {
            unit.read(path, first, &paragraph.join("\n"));
            first += paragraph.len();
        }
        if is_page {
            self.page_bytes += text.len();
            return;
        }
        for (number, (line, prose)) in (1..).zip(text.lines().zip(lines)) {
            let columns = line.chars().count();
            let is_breakable = !prose.is_empty() && !prose.starts_with('|') && !prose.contains("://");
            let is_wide = is_breakable && columns > COMMENT_COLUMNS_MAX;
            let problem = format!("the comment has {columns} columns, more than {COMMENT_COLUMNS_MAX}");
            self.problems
                .extend(is_wide.then(|| format!("{path}:{number}: {problem}")));
        }
        for name in guarantees::tests(path, text) {
            let is_long = name.len() > TEST_NAME_MAX;
            let number = text.lines().take_while(|line| !line.contains(&name)).count() + 1;
            let problem = format!("test name of more than {TEST_NAME_MAX} characters");
            self.problems
                .extend(is_long.then(|| format!("{path}:{number}: `{name}`: {problem}")));
        }
    }

    pub(super) fn problems(self) -> Vec<String> {
        let (mut problems, mut page_words, mut comment_words) = (self.problems, 0, 0);
        for (name, unit) in &self.units {
            let is_page = name.ends_with(".md");
            *(if is_page {
                &mut page_words
            } else {
                &mut comment_words
            }) += unit.words;
            let limit = |rate: f64, size: usize| FREE.max((rate * size as f64) as usize);
            let mut report = |kind: &str, places: &[String], limit: usize, rate: String| {
                let count = places.len();
                let places = places.iter().filter(|_| count > limit);
                let rule = format!("{kind}; {name} has {count}, more than {limit} ({rate})");
                problems.extend(places.map(|place| format!("{place}: {rule}")));
            };
            for ((kind, rate, _), hits) in KINDS.iter().zip(&unit.hits) {
                let limit = limit(rate / 10_000.0, unit.words);
                report(kind, hits, limit, format!("{rate} per 10,000 words"));
            }
            let kind = format!("sentence over {SENTENCE_WORDS_MAX} words");
            let limit = limit(LONG_SENTENCES_MAX, unit.sentences);
            report(&kind, &unit.long, limit, "one in ten".to_owned());
        }
        for (what, size, limit) in [
            ("words of comments", comment_words, COMMENT_WORDS_MAX),
            ("words of hand-written pages", page_words, PAGE_WORDS_MAX),
            ("bytes of hand-written pages", self.page_bytes, PAGE_BYTES_MAX),
        ] {
            problems.extend((size > limit).then(|| format!("{size} {what}, more than {limit}")));
        }
        problems
    }
}

fn prose(is_page: bool, text: &str) -> Vec<&str> {
    let mut is_block = false;
    let lines = text.lines().map(str::trim).map(|line| {
        let comment = line.strip_prefix("//").unwrap_or_default();
        let comment = comment.trim_start_matches(['/', '!']).trim();
        let prose = if is_page { line } else { comment };
        let is_fence = prose.starts_with("```");
        is_block ^= is_fence;
        if is_block || is_fence { "" } else { prose }
    });
    lines.collect()
}

fn starts_paragraph(prose: &str) -> bool {
    let number = prose.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let is_numbered = number.len() < prose.len() && number.starts_with(". ");
    let marks = ["- ", "* ", "+ ", "|", "#"];
    is_numbered || marks.iter().any(|mark| prose.starts_with(mark))
}

impl Unit {
    fn read(&mut self, path: &str, first: usize, paragraph: &str) {
        for sentence in sentences(first, paragraph) {
            let is_word = |token: &&(usize, &str)| token.1.contains(char::is_alphabetic);
            let words = sentence.iter().filter(is_word).count();
            if words < SENTENCE_WORDS_MIN {
                continue;
            }
            self.words += words;
            self.sentences += 1;
            let is_long = words > SENTENCE_WORDS_MAX;
            self.long
                .extend(is_long.then(|| format!("{path}:{}", sentence[0].0)));
            for (at, (line, word)) in sentence.iter().enumerate() {
                let phrases = PHRASES.get(word.to_lowercase().as_str());
                for (kind, others) in phrases.into_iter().flatten() {
                    let words = sentence[at..].iter().map(|(_, word)| *word);
                    let words: Vec<_> = words.take(1 + others.len()).collect();
                    let is_one =
                        |(word, choices): (&&str, &&str)| choices.split('/').any(|choice| choice == *word);
                    if words.len() > others.len() && words[1..].iter().zip(others).all(is_one) {
                        self.hits[*kind].push(format!("{path}:{line}: “{}”", words.join(" ")));
                    }
                }
            }
        }
    }
}

/// Words, code spans and punctuation of each sentence, with their lines. Markup and targets of
/// links are left out.
fn sentences(mut line: usize, paragraph: &str) -> Vec<Vec<(usize, &str)>> {
    let is_word = |letter: char| letter.is_alphanumeric() || "'’-".contains(letter);
    let (mut sentences, mut is_apart) = (vec![Vec::new()], false);
    let mut rest = paragraph;
    while let Some(first) = rest.chars().next() {
        let past = |start: usize, end: char| Some(start + rest[start..].find(end)? + 1);
        let length = match first {
            '`' => past(1, '`'),
            ']' if rest.starts_with("](") => past(2, ')'),
            ']' if rest.starts_with("][") => past(2, ']'),
            _ if is_word(first) => rest.find(|letter| !is_word(letter)).or(Some(rest.len())),
            _ => None,
        };
        let (token, behind) = rest.split_at(length.unwrap_or(first.len_utf8()));
        let is_left_out = first.is_whitespace() || "*_#>|[]".contains(first);
        if !is_left_out && let Some(sentence) = sentences.last_mut() {
            let is_over = sentence.last().is_some_and(|(_, last)| ".!?:;".contains(last));
            if is_over && is_apart && (first.is_uppercase() || "\"'(`".contains(first)) {
                sentences.push(vec![(line, token)]);
            } else {
                sentence.push((line, token));
            }
        }
        is_apart = is_left_out;
        line += token.matches('\n').count();
        rest = behind;
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        let mut language = Language::default();
        language.read(path, text);
        let problems = language.problems();
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem:?} is not {expected:?}");
        }
    }

    #[test]
    fn third_hit_of_a_kind_is_refused() {
        for phrase in KINDS.iter().flat_map(|(_, _, phrases)| phrases.split(", ")) {
            let words = phrase.split(' ').filter_map(|word| word.split('/').next());
            let sentence = format!("The relay {} has a row.", words.collect::<Vec<_>>().join(" "));
            check("a.md", &format!("{sentence} {sentence}"), &[]);
            let thrice = format!("{sentence}\n\n- {sentence}\n\n| {sentence} |\n");
            check("a.md", &thrice, &["a.md:1: “", "a.md:3: “", "a.md:5: “"]);
        }
    }

    #[test]
    fn hits_have_the_line_and_the_limit() {
        let text = "//! Those rows stay here. The relay\n//! reads what\n//! it has, and one that fails.\n";
        let places = ["a/b.rs:1: “Those”", "a/b.rs:2: “what it”", "a/b.rs:3: “one that”"];
        check("a/b.rs", text, &places);
        let mut language = Language::default();
        language.read("a/b.rs", text);
        let expected =
            "a/b.rs:1: “Those”: pronoun in place of a noun; a has 3, more than 2 (10 per 10,000 words)";
        assert_eq!(language.problems()[0], expected);
    }

    #[test]
    fn large_units_have_a_rate() {
        let plain = "The relay publishes messages.\n\n".repeat(2_500);
        check("a.md", &plain.replacen("messages", "those", 10), &[]);
        check("a.md", &plain.replacen("messages", "those", 11), &["a.md:"; 11]);
    }

    #[test]
    fn code_and_generated_pages_are_no_prose() {
        let those = "The relay keeps those rows. ".repeat(3);
        check("docs/reference/a.md", &those, &[]);
        check("a.md", &format!("```text\n{those}\n```\n"), &[]);
        check("a.md", &format!("The relay is running `{those}` now.\n"), &[]);
        let link = format!("The relay is [running](a.md {those}) now.\n");
        check("a.md", &link, &[]);
        check("a/b.rs", &format!("const A: &str = \"{those}\";\n"), &[]);
    }

    #[test]
    fn third_long_sentence_of_a_small_page_is_refused() {
        let long = format!("The relay{} messages.\n\n", " publishes".repeat(23));
        check("a.md", &long.repeat(2), &[]);
        let places = ["a.md:1: sentence", "a.md:3: sentence", "a.md:5: sentence"];
        check("a.md", &long.repeat(3), &places);
        let short = long.replace("publishes publishes", "sends. It publishes");
        check("a.md", &short.repeat(3), &[]);
    }

    #[test]
    fn comments_are_narrow() {
        let wide = "x".repeat(COMMENT_COLUMNS_MAX);
        let comment = format!("fn f() {{}}\n    // {wide}\n");
        check("a/b.rs", &comment, &["a/b.rs:2: the comment has 107"]);
        let block = format!("// ```\n// {wide}\n// ```\n// | {wide} |\n// https://{wide}\nlet a = {wide};\n");
        check("a/b.rs", &block, &[]);
    }

    #[test]
    fn test_names_are_short() {
        let test = |length| format!("#[test]\nfn {}() {{}}\n", "x".repeat(length));
        check("a/b.rs", &test(TEST_NAME_MAX), &[]);
        check("a/b.rs", &test(TEST_NAME_MAX + 1), &["a/b.rs:2: `xxx"]);
    }

    #[test]
    fn all_pages_and_all_comments_are_bounded() {
        let comment = "// The relay publishes messages.\n\n";
        let page = "A row is new.\n\n";
        let [few, many] = [0, 1].map(|more| comment.repeat(COMMENT_WORDS_MAX / 4 + more));
        check("a/b.rs", &few, &[]);
        check("a/b.rs", &many, &["90004 words"]);
        check("a.md", &page.repeat(PAGE_WORDS_MAX / 4), &[]);
        check("a.md", &page.repeat(PAGE_WORDS_MAX / 4 + 1), &["45004 words"]);
        check("a.md", &"\n".repeat(PAGE_BYTES_MAX + 1), &["280001 bytes"]);
    }
}
