//! Generates `docs/reference/settings.md` from `outbox print config`. `OUTBOX_BLESS=1` writes
//! it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use outbox_cli::config::{DEFAULT_FILE, File};

use crate::reference_page::compare;

const HEAD: &str = "# Settings of the program `outbox`

Generated from the file that `outbox print config` prints, which names the environment variables too. Settings of the crates
are documented at their types: `RelayConfig`, `InboxConfig`, `EventStream`, `PublisherConfig`, `LogConfig`,
`IdempotencyLayer`.
";

struct Setting {
    table: &'static str,
    line: &'static str,
    is_commented_out: bool,
    about: String,
}

impl Setting {
    fn key_and_value(&self) -> (&'static str, &'static str) {
        self.line.split_once(" = ").unwrap()
    }

    fn kind(&self) -> &'static str {
        let (key, value) = self.key_and_value();
        let parsed: toml::Table = self.line.parse().unwrap();
        let number = value.trim_matches('"').trim_end_matches(char::is_alphabetic);
        match &parsed[key] {
            toml::Value::String(_) if number.parse::<u64>().is_ok() => "duration",
            value => value.type_str(),
        }
    }
}

fn settings() -> Vec<Setting> {
    let (mut settings, mut table, mut about) = (Vec::new(), "", Vec::new());
    for line in DEFAULT_FILE.lines() {
        let comment = line.strip_prefix("# ");
        let text = comment.unwrap_or(line);
        let is_setting = text.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
        if is_setting {
            settings.push(Setting {
                table,
                line: text,
                is_commented_out: comment.is_some(),
                about: std::mem::take(&mut about).join(" "),
            });
        } else if comment.is_some() {
            about.push(text);
        } else {
            about.clear();
            if line.starts_with('[') {
                table = line;
            }
        }
    }
    settings
}

fn known_keys(table: &str) -> BTreeSet<String> {
    let error = File::parse("", &format!("{table}\nx = 1"))
        .unwrap_err()
        .to_string();
    let names = error.split('`').skip(3).step_by(2).map(str::to_owned);
    let within = |name: &String| match table {
        "" => ["http", "log", "outbox"].contains(&name.as_str()),
        "[[outbox]]" => ["stream", "relay", "log"].contains(&name.as_str()),
        _ => false,
    };
    names.filter(|name| !within(name)).collect()
}

#[test]
fn printed_file_has_every_key() {
    let settings = settings();
    let tables: BTreeSet<&str> = settings.iter().map(|setting| setting.table).collect();
    for table in tables {
        let of_table = settings.iter().filter(|setting| setting.table == table);
        let printed: BTreeSet<String> = of_table
            .map(|setting| setting.key_and_value().0.to_owned())
            .collect();
        let place = match table.strip_prefix("[outbox.") {
            Some(_) => format!("[[outbox]]\n{table}"),
            None => table.to_owned(),
        };
        assert_eq!(printed, known_keys(&place), "{table}");
    }
}

#[test]
fn settings_page_matches_the_printed_file() {
    let mut page = HEAD.to_owned();
    let mut last = None;
    for setting in settings() {
        if last.replace(setting.table) != Some(setting.table) {
            if !setting.table.is_empty() {
                let _ = write!(page, "\n## `{}`\n", setting.table);
            }
            page.push_str("\n| key | type | default | meaning |\n|---|---|---|---|\n");
        }
        let (key, value) = setting.key_and_value();
        let default = match setting.is_commented_out {
            true => format!("none; for example `{value}`"),
            false => format!("`{value}`"),
        };
        let _ = writeln!(
            page,
            "| `{key}` | {} | {default} | {} |",
            setting.kind(),
            setting.about
        );
    }
    compare("settings.md", &page);
}
