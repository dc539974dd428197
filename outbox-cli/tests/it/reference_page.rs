//! Generates the pages of `docs/reference` from the code. `OUTBOX_BLESS=1` writes them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Command, CommandFactory as _};
use outbox::core::telemetry::{METRICS, Metric};
use outbox_cli::Program;
use outbox_cli::admin::rights::{GRANTS, When};

const COMMON: usize = 10;

pub(crate) fn compare(name: &str, text: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference");
    let path = folder.join(name);
    if std::env::var_os("OUTBOX_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/reference/{name} is out of date; run this test with OUTBOX_BLESS=1"
    );
}

#[test]
fn rights_page_matches_the_program() {
    let mut page = "# Rights in the database

Generated from the table that `outbox print grants` uses. `operator` includes `viewer`, and
`log-relay` includes `relay`. A role may be combined with others: a consumer whose handlers record is also a `writer`.

| role | on | rights | for |
|---|---|---|---|
"
    .to_owned();
    for grant in GRANTS {
        let when = match grant.when {
            When::Always => String::new(),
            other => format!(", {other}"),
        };
        let (role, object, why) = (grant.role, grant.object.name(), grant.why);
        let rights = grant.privileges.join(", ");
        let _ = writeln!(page, "| `{role}` | `{object}` | {rights} | {why}{when} |");
    }
    compare("rights.md", &page);
}

fn metrics(page: &mut String, heading: &str, metrics: &[Metric]) {
    let _ = write!(
        page,
        "\n## {heading}\n\n| name | kind | labels | meaning |\n|---|---|---|---|\n"
    );
    for metric in metrics {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, labels) = (metric.name, metric.kind, labels.join(", "));
        let _ = writeln!(page, "| `{name}` | {kind} | {labels} | {} |", metric.description);
    }
}

#[test]
fn metrics_page_matches_the_code() {
    let mut page = "# Metrics

Generated from the constants `METRICS` of the crates. Names ending in `_seconds` are in seconds, names ending in `_bytes`
in bytes. Prometheus adds the label `job`, and `outbox relay run` adds the label `outbox`.
[Alerts](../../outbox-cli/monitoring/alerts.yml) and a [board](../../outbox-cli/monitoring/grafana.json) use these metrics.
"
    .to_owned();
    metrics(&mut page, "Relay", METRICS);
    metrics(&mut page, "Log relay", outbox::log::telemetry::METRICS);
    metrics(&mut page, "Inbox", outbox::inbox::telemetry::METRICS);
    compare("metrics.md", &page);
}

fn leaves<'a>(name: &str, command: &'a Command, found: &mut Vec<(String, &'a Command)>) {
    for part in command.get_subcommands().filter(|part| part.get_name() != "help") {
        leaves(&format!("{name} {}", part.get_name()), part, found);
    }
    if !command.is_subcommand_required_set() {
        found.push((name.to_owned(), command));
    }
}

fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    arguments.filter(|argument| !["help", "version"].contains(&argument.get_id().as_str()))
}

fn row(argument: &Arg) -> String {
    let value = match argument.get_action().takes_values() {
        true => argument.get_value_names().unwrap_or_default().join(" "),
        false => String::new(),
    };
    let name = match (argument.get_long(), value.as_str()) {
        (None, value) => value.to_owned(),
        (Some(long), "") => format!("--{long}"),
        (Some(long), value) => format!("--{long} {value}"),
    };
    let mut meaning = argument.get_help().map(ToString::to_string).unwrap_or_default();
    if !value.is_empty() {
        let values = argument.get_possible_values();
        let values: Vec<String> = values
            .iter()
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if !values.is_empty() {
            let _ = write!(meaning, ". One of {}", values.join(", "));
        }
        for default in argument.get_default_values() {
            let _ = write!(meaning, ". Default: `{}`", default.to_string_lossy());
        }
    }
    format!(
        "| `{}` | {} |\n",
        name.replace('|', "\\|"),
        meaning.replace('|', "\\|")
    )
}

const ARGUMENTS: &str = "| argument | meaning |\n|---|---|\n";

#[test]
fn commands_page_matches_the_parser() {
    let mut program = Program::command();
    program.build();
    let mut commands = Vec::new();
    leaves("outbox", &program, &mut commands);
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for argument in commands.iter().flat_map(|(_, command)| arguments(command)) {
        *uses.entry(row(argument)).or_default() += 1;
    }
    let is_common = |argument: &&Arg| uses.get(&row(argument)).is_some_and(|uses| *uses >= COMMON);
    let mut page = "# Commands of the program `outbox`

Generated from the parser of the program. [The command line](../guide/14-command-line.md) describes the rules, the exit
codes and the output.

## Common options

"
    .to_owned();
    page.push_str(ARGUMENTS);
    let mut known = Vec::new();
    for argument in commands
        .iter()
        .flat_map(|(_, command)| arguments(command))
        .filter(is_common)
    {
        let row = row(argument);
        if !known.contains(&row) {
            page.push_str(&row);
            known.push(row);
        }
    }
    for (name, command) in &commands {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(page, "\n## `{name}`\n\n{about}\n");
        let own: String = arguments(command)
            .filter(|argument| !is_common(argument))
            .map(row)
            .collect();
        if !own.is_empty() {
            let _ = write!(page, "\n{ARGUMENTS}{own}");
        }
        let common: Vec<String> = arguments(command)
            .filter(is_common)
            .filter_map(|argument| Some(format!("`--{}`", argument.get_long()?)))
            .collect();
        if !common.is_empty() {
            let _ = write!(page, "\nCommon options: {}\n", common.join(", "));
        }
    }
    compare("commands.md", &page);
}
