//! Runs a command and captures its output.

use std::process::Command;

use clap::CommandFactory as _;
use serde_json::Value;

use crate::place::Place;

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) said: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        let json = self.json();
        let ids = json.as_array().unwrap().iter();
        ids.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn says(&self, words: &str) -> bool {
        self.out.contains(words) || self.said.contains(words)
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        for command in self.commands() {
            runs_as_printed(&command);
        }
        self
    }

    fn commands(&self) -> Vec<String> {
        let lines = self.out.lines().chain(self.said.lines());
        let lines = lines.filter_map(|line| line.trim_start().strip_prefix("next: "));
        let mut commands: Vec<String> = lines.map(str::to_owned).collect();
        let documents = serde_json::Deserializer::from_str(&self.out).into_iter::<Value>();
        for document in documents.map_while(Result::ok) {
            collect(&document, false, &mut commands);
        }
        commands
    }
}

fn collect(value: &Value, is_next: bool, commands: &mut Vec<String>) {
    match value {
        Value::String(text) if is_next => commands.push(text.clone()),
        Value::Array(values) => values.iter().for_each(|value| collect(value, is_next, commands)),
        Value::Object(values) => {
            for (key, value) in values {
                collect(value, key == "next", commands);
            }
        }
        _ => {}
    }
}

fn words(line: &str) -> Vec<String> {
    let shell = |arguments: &[&str]| Command::new("bash").args(arguments).output().unwrap();
    let checked = shell(&["-n", "-c", line]);
    assert!(checked.status.success(), "no command: {line}");
    let split = shell(&[
        "-c",
        r#"set -f; eval "words=($1)"; printf '%s\0' "${words[@]}""#,
        "-",
        line,
    ]);
    assert!(split.status.success(), "no words: {line}: {split:?}");
    let words = String::from_utf8(split.stdout).unwrap();
    words.split_terminator('\0').map(str::to_owned).collect()
}

/// Suggested commands of `outbox` are checked with the program's own parser.
#[track_caller]
pub(crate) fn runs_as_printed(line: &str) {
    assert!(
        !line.contains(['`', ';', '…', '\n']),
        "more than a command: {line}"
    );
    let words = words(line);
    let of_nats: Vec<&str> = words.iter().map(String::as_str).collect();
    match of_nats.as_slice() {
        [
            "nats",
            "stream",
            "info" | "edit" | "add" | "get",
            stream,
            rest @ ..,
        ] => {
            assert!(!stream.starts_with('-'), "no stream: {line}");
            let is_option =
                |word: &&str| word.starts_with("--") || word.bytes().all(|byte| byte.is_ascii_digit());
            assert!(rest.iter().all(is_option), "{line}");
        }
        ["chronyc", "tracking"] => {}
        ["outbox", ..] => {
            let parsed = outbox_cli::Program::command().try_get_matches_from(&of_nats);
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
        _ => panic!("a command of another program: {line}"),
    }
}

#[test]
fn a_sentence_is_no_next_command() {
    for line in [
        "outbox relay run, with provision = true",
        "nats stream info",
        "nats stream edit SHOP --max-msg-size=-1, and max_payload of the server",
        "outbox consumers list --forecast; if the lag does not shrink, start the service",
        "outbox show",
        "start the service",
    ] {
        let checked = std::panic::catch_unwind(|| runs_as_printed(line));
        assert!(checked.is_err(), "{line}");
    }
    runs_as_printed("outbox why --config 'my shop.toml' 'order/it is'");
    runs_as_printed("nats stream edit SHOP --max-msgs=16");
}

pub(crate) trait Words {
    fn words(&self) -> Vec<&str>;
}

impl Words for str {
    fn words(&self) -> Vec<&str> {
        self.split(' ').collect()
    }
}

impl Words for String {
    fn words(&self) -> Vec<&str> {
        self.as_str().words()
    }
}

impl Words for [&str] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl Words for Vec<&str> {
    fn words(&self) -> Vec<&str> {
        self.clone()
    }
}

impl<const N: usize> Words for [&str; N] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

pub(crate) fn run(words: &(impl Words + ?Sized), variables: &[(&str, &str)]) -> Answer {
    let output = Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args(words.words())
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    Answer {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        said: String::from_utf8(output.stderr).unwrap(),
    }
}

pub(crate) fn at(place: &Place, nats: &str, words: &(impl Words + ?Sized)) -> Answer {
    logged_in(place, &place.url, nats, words)
}

pub(crate) fn logged_in(place: &Place, database: &str, nats: &str, words: &(impl Words + ?Sized)) -> Answer {
    let file = place.folder.path().join("outbox.toml");
    let events =
        "events = [{ type = \"order.placed\", version = 1, sensitive = [\"email\"] }]\n[outbox.stream]";
    let text = place.outbox("shop").replace("[outbox.stream]", events);
    std::fs::write(&file, text).unwrap();
    let mut all = words.words();
    all.extend(["--config", file.to_str().unwrap()]);
    let mut answer = run(&all, &[("DATABASE_URL", database), ("NATS_URL", nats)]);
    // Options in suggested commands are tested in `files`.
    let given = format!(" --config {}", file.display());
    answer.out = answer.out.replace(&given, "");
    answer.said = answer.said.replace(&given, "");
    answer
}

pub(crate) fn ask(place: &Place, words: &(impl Words + ?Sized)) -> Answer {
    at(place, &place.nats, words)
}
