//! Tests of `outbox-cli/monitoring`. Alerts and dashboard use existing metrics. Alerts link to
//! existing paragraphs and fire when they should. Prometheus can parse each expression.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use outbox::core::message::PARTITIONS;
use outbox::core::store::BACKLOG_COUNT_MAX;
use outbox::core::telemetry::METRICS as RELAY;
use outbox::inbox::telemetry::METRICS as INBOX;
use outbox::inbox::{DEAD_LETTERS_COUNT_MAX, InboxConfig};
use outbox::log::telemetry::METRICS as LOG;
use outbox::testing::backend_url;

const SUFFIXES: [&str; 3] = ["_sum", "_count", "_bucket"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn alerts() -> String {
    fs::read_to_string(repository().join("outbox-cli/monitoring/alerts.yml")).unwrap()
}

/// Values of a key in `alerts.yml`, where each line has at most one key.
fn values_of<'a>(key: &'a str, file: &'a str) -> impl Iterator<Item = &'a str> {
    file.lines()
        .filter_map(move |line| line.trim_start_matches([' ', '-']).strip_prefix(key))
        .map(str::trim)
}

fn metrics_in(expression: &str) -> impl Iterator<Item = &str> {
    expression
        .split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
        .filter(|word| word.starts_with("outbox_") || word.starts_with("inbox_"))
}

fn is_known(name: &str) -> bool {
    let base = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix));
    RELAY.iter().chain(INBOX).chain(LOG).any(|metric| {
        let is_histogram = metric.kind == "histogram";
        metric.name == name && !is_histogram || is_histogram && Some(metric.name) == base
    })
}

fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            _ => character.is_alphanumeric().then_some(character),
        })
        .collect()
}

#[test]
fn alerts_use_existing_metrics() {
    let file = alerts();
    let used: BTreeSet<&str> = values_of("expr:", &file).flat_map(metrics_in).collect();
    assert!(used.len() > 20, "{used:?}");
    let unknown: Vec<&&str> = used.iter().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

fn expressions_of_the_board() -> Vec<String> {
    let file = fs::read_to_string(repository().join("outbox-cli/monitoring/grafana.json")).unwrap();
    let board: serde_json::Value = serde_json::from_str(&file).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array());
    targets
        .flatten()
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn dashboard_uses_existing_metrics() {
    let expressions = expressions_of_the_board();
    let used: BTreeSet<&str> = expressions.iter().flat_map(|text| metrics_in(text)).collect();
    assert!(used.len() > 20, "{used:?}");
    let unknown: Vec<&&str> = used.iter().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn prometheus_parses_each_dashboard_expression() {
    let Some(promtool) = backend_url("OUTBOX_TEST_PROMTOOL_BIN") else {
        return;
    };
    let rules: Vec<_> = expressions_of_the_board()
        .into_iter()
        .enumerate()
        .map(|(number, expression)| {
            let expression = expression.replace("$__rate_interval", "5m");
            serde_json::json!({ "record": format!("panel_{number}"), "expr": expression })
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("board.json");
    let groups = serde_json::json!({ "groups": [{ "name": "board", "rules": rules }] });
    fs::write(&file, groups.to_string()).unwrap();
    let output = Command::new(promtool)
        .args(["check", "rules"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn alerts_link_to_existing_paragraphs() {
    let file = alerts();
    let page = fs::read_to_string(repository().join("docs/operations.md")).unwrap();
    let anchors: BTreeSet<String> = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(anchor)
        .collect();
    let mut alerts = 0;
    for link in values_of("runbook:", &file) {
        let paragraph = link.strip_prefix("docs/operations.md#").unwrap();
        assert!(anchors.contains(paragraph), "{link}");
        alerts += 1;
    }
    assert_eq!(alerts, values_of("alert:", &file).count());
}

/// A program may have several outboxes. A rule over their sum would miss the outage of one outbox.
#[test]
fn outbox_alerts_group_by_outbox() {
    let file = alerts();
    for expression in values_of("expr:", &file) {
        let expression = expression.replace(
            "by (job, instance) (present_over_time(outbox_leases_owned[1d]))",
            "",
        );
        let groups = expression.split(" by (").skip(1);
        for group in groups.filter(|_| expression.contains("outbox_")) {
            assert!(group.starts_with("job, outbox"), "{expression}");
        }
    }
    let board = expressions_of_the_board();
    let of_outbox = board.iter().filter(|expression| expression.contains("(outbox_"));
    let ungrouped: Vec<_> = of_outbox
        .filter(|expression| !expression.contains("by (job, outbox"))
        .collect();
    assert!(ungrouped.is_empty(), "{ungrouped:?}");
}

fn with_commas(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", with_commas(number / 1_000), number % 1_000),
    }
}

#[test]
fn alerts_and_dashboard_use_the_numbers_of_the_code() {
    let config = InboxConfig::default();
    let blocked = config.blocked_max as u64;
    let timeout = config.handler_timeout.as_secs();
    let (counted, letters) = (
        with_commas(BACKLOG_COUNT_MAX),
        with_commas(DEAD_LETTERS_COUNT_MAX),
    );
    let expected = [
        ("alerts.yml", format!("Counts end at {counted}:")),
        ("alerts.yml", format!("(outbox_pending) >= {BACKLOG_COUNT_MAX})")),
        ("alerts.yml", format!("(outbox_leases_owned) < {PARTITIONS}\n")),
        ("alerts.yml", format!("of {PARTITIONS} partitions")),
        ("alerts.yml", format!("(inbox_blocked) > {}\n", blocked * 4 / 5)),
        (
            "alerts.yml",
            format!("blocked_max ({} by default)", with_commas(blocked)),
        ),
        ("alerts.yml", format!("open, counted to {letters}")),
        ("alerts.yml", format!("handler_timeout ({timeout} s by default)")),
        ("grafana.json", format!("Counted to {counted}.")),
        ("grafana.json", format!("{PARTITIONS} together.")),
        ("grafana.json", format!("handler_timeout, {timeout} s by default")),
    ];
    for (file, phrase) in expected {
        let text = fs::read_to_string(repository().join("outbox-cli/monitoring").join(file)).unwrap();
        assert!(text.contains(&phrase), "{file} lacks {phrase:?}");
    }
}

#[test]
fn alerts_fire_on_failures_and_not_in_healthy_hours() {
    let file = alerts();
    let folder = repository().join("outbox-cli/monitoring");
    let tests = fs::read_to_string(folder.join("alerts.test.yml")).unwrap();
    for alert in values_of("alert:", &file) {
        let fires = format!("- alertname: {alert}\n");
        let rests = format!("- {{alertname: {alert}, ");
        assert!(tests.contains(&fires) && tests.contains(&rests), "{alert}");
    }
    let Some(promtool) = backend_url("OUTBOX_TEST_PROMTOOL_BIN") else {
        return;
    };
    let output = Command::new(promtool)
        .args(["test", "rules", "alerts.test.yml"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}
