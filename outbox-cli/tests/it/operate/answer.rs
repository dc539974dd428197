//! Runs a command of the program and keeps what it has answered.

use std::process::Command;

use serde_json::Value;

use crate::place::Place;

/// What a command has answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    /// The data.
    pub(crate) out: String,
    /// The words.
    pub(crate) said: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Whether the data or the words contain this.
    pub(crate) fn says(&self, words: &str) -> bool {
        self.out.contains(words) || self.said.contains(words)
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

/// Runs the program with these variables and no others.
pub(crate) fn run(words: &[&str], variables: &[(&str, &str)]) -> Answer {
    let output = Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args(words)
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

/// Runs a command on the outbox of a place, with NATS at this address.
pub(crate) fn at(place: &Place, nats: &str, words: &[&str]) -> Answer {
    logged_in(place, &place.url, nats, words)
}

/// Runs a command on the outbox of a place, with these addresses of the database and of NATS. Its answer is without the options that hints repeat.
pub(super) fn logged_in(place: &Place, database: &str, nats: &str, words: &[&str]) -> Answer {
    let file = place.folder.path().join("outbox.toml");
    let events =
        "events = [{ type = \"order.placed\", version = 1, sensitive = [\"email\"] }]\n[outbox.stream]";
    let text = place.outbox("shop").replace("[outbox.stream]", events);
    std::fs::write(&file, text).unwrap();
    let mut all = words.to_vec();
    all.extend(["--config", file.to_str().unwrap()]);
    let mut answer = run(&all, &[("DATABASE_URL", database), ("NATS_URL", nats)]);
    // Commands that are named name the file as well; `hints` is about that.
    let given = format!(" --config {}", file.display());
    answer.out = answer.out.replace(&given, "");
    answer.said = answer.said.replace(&given, "");
    answer
}

/// Runs a command on the outbox of a place.
pub(crate) fn ask(place: &Place, words: &[&str]) -> Answer {
    at(place, &place.nats, words)
}
