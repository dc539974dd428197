//! Configuration: error texts and defaults.

use std::time::Duration;

use outbox::core::RelayConfig;
use outbox::nats::EventStream;
use outbox_cli::config::{Config, ConfigError, DEFAULT_FILE, Environment, File};

const SERVERS: [(&str, &str); 2] = [
    ("DATABASE_URL", "postgres://relay:hunter2@db/shop"),
    ("NATS_URL", "nats://nats:4222"),
];

fn load(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let environment: Environment = variables.iter().copied().collect();
    Config::new(File::parse("outbox.toml", text)?, &environment)
}

#[track_caller]
fn refused(text: &str) -> String {
    let error = load(text, &SERVERS).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    error.to_string()
}

#[test]
fn the_printed_file_holds_the_defaults() {
    let (printed, empty) = (load(DEFAULT_FILE, &SERVERS).unwrap(), load("", &SERVERS).unwrap());
    let (printed_stream, stream) = (&printed.outboxes[0].section.stream, EventStream::default());
    assert_eq!(printed_stream.event_stream().unwrap(), stream);
    let relay = printed.outboxes[0].section.relay.relay_config();
    assert_eq!(relay, RelayConfig::default());
    let mut without = printed.clone();
    let section = &mut without.outboxes[0].section.stream;
    (section.duplicate_window, section.max_age, section.replicas) = (None, None, None);
    assert_eq!(without, empty);
}

#[test]
fn commented_settings_of_printed_file_exist() {
    let is_setting = |line: &str| {
        let key = line.split(" = ").next().unwrap_or_default();
        line.contains(" = ") && !key.contains(' ')
    };
    let on: Vec<String> = DEFAULT_FILE
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(setting) if is_setting(setting) => setting.to_owned(),
            _ => line.to_owned(),
        })
        .collect();
    let file = File::parse("outbox.toml", &on.join("\n")).unwrap();
    let section = &file.outbox[0];
    assert!(section.database_url.is_some() && section.nats_ca.is_some() && section.schema.is_some());
    assert!(section.stream.max_bytes.is_some() && section.stream.subject_shards.is_some());
    assert_eq!(section.relay.name.as_deref(), Some("shop-relay-0"));
}

#[test]
fn unknown_key_error_has_line_and_valid_keys() {
    let error = refused("[http]\nadress = \"127.0.0.1:1\"\n");
    assert!(
        error.starts_with("outbox.toml, line 2: unknown field `adress`, expected `address`"),
        "{error}"
    );
    for text in [
        "x = 1",
        "[[outbox]]\nx = 1",
        "[[outbox]]\n[outbox.stream]\nx = 1",
        "[[outbox]]\n[outbox.relay]\nx = 1",
        "[[outbox]]\n[outbox.log]\nx = 1",
        "[log]\nx = 1",
    ] {
        assert!(refused(text).contains("unknown field `x`"), "{text}");
    }
}

#[test]
fn a_line_with_a_password_is_never_quoted() {
    for text in [
        "http = \"nats://u:hunter2@h\"",
        "[[outbox]]\ndatabase_url = \"postgres://u:hunter2@h",
        "[[outbox]]\nmigrate = \"postgres://u:hunter2@h\"",
        "[[outbox]]\nname = \"a\"\ndatabase_url = 1 # hunter2",
        "[[outbox]]\n[outbox.relay]\nlease_ttl = \"postgres://u:hunter2@h\"",
    ] {
        assert!(refused(text).starts_with("outbox.toml, line "), "{text}");
    }
}

#[test]
fn a_missing_address_names_the_variables_to_set() {
    let error = load("[[outbox]]\nname = \"orders\"", &SERVERS[1..]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with("set DATABASE_URL or OUTBOX_ORDERS_DATABASE_URL"),
        "{text}"
    );
    let error = load("", &[SERVERS[0], ("NATS_URL", "")]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("set NATS_URL or OUTBOX_OUTBOX_NATS_URL"),
        "{error}"
    );
}

#[test]
fn duplicate_outbox_name_or_tables_are_rejected() {
    let error = refused("[[outbox]]\nname = \"a\"\n[[outbox]]\nname = \"a\"\nprefix = \"b_\"");
    assert!(error.starts_with("two outboxes have the name `a`"), "{error}");
    let error = refused("[[outbox]]\nname = \"a\"\n[[outbox]]\nname = \"b\"");
    assert!(
        error.starts_with("the outboxes `a` and `b` have the same tables"),
        "{error}"
    );
    let config = load(
        "[[outbox]]\nname = \"a\"\n[[outbox]]\nname = \"b\"\nprefix = \"b_\"",
        &SERVERS,
    );
    assert_eq!(config.unwrap().outboxes.len(), 2);
}

#[test]
fn nonsensical_values_are_rejected() {
    for (text, expected) in [
        (
            "[[outbox]]\n[outbox.relay]\nlease_ttl = \"15\"",
            "`15` is not a duration",
        ),
        (
            "[[outbox]]\n[outbox.relay]\nretention = \"long\"",
            "`long` is not a retention",
        ),
        ("[[outbox]]\nname = \"Orders\"", "`Orders` cannot be the name"),
        ("[[outbox]]\nprefix = \"a-b\"", "prefix `a-b` is malformed"),
        ("[[outbox]]\nwriters = true", "`writers` without `migrate`"),
        ("[[outbox]]\n[outbox.stream]\nprefix = \"a b\"", "a b"),
        (
            "[[outbox]]\n[outbox.stream]\nreplicas = 7",
            "`replicas` must be 1 to 5",
        ),
        ("[log]\nformat = \"xml\"", "unknown variant `xml`"),
        ("[http]\naddress = \"localhost\"", "address"),
    ] {
        let error = refused(text);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_environment_wins_over_the_file() {
    let text = "[[outbox]]\nname = \"a\"\ndatabase_url = \"sqlite://file\"\nnats_credentials = \"/file\"";
    let config = load(text, &SERVERS).unwrap();
    assert_eq!(config.outboxes[0].database_url.expose(), SERVERS[0].1);
    let own = ("OUTBOX_A_DATABASE_URL", "sqlite://own");
    let config = load(text, &[SERVERS[0], SERVERS[1], own, ("NATS_CREDS", "/env")]).unwrap();
    assert_eq!(config.outboxes[0].database_url.expose(), "sqlite://own");
    assert_eq!(config.outboxes[0].nats_credentials, Some("/env".into()));
    assert!(!format!("{config:?}").contains("sqlite://"));
}

/// If `DATABASE_URL` overrode the address in the file, messages of one database would go to another
/// outbox's stream.
#[test]
fn general_variable_never_overrides_an_outbox_address() {
    let text = "[[outbox]]\nname = \"a\"\ndatabase_url = \"sqlite://file\"\n[[outbox]]\nname = \"b\"";
    let error = refused(text);
    assert!(
        error.contains("set OUTBOX_A_DATABASE_URL instead of DATABASE_URL"),
        "{error}"
    );
}

#[test]
fn settings_of_the_file_reach_the_relay() {
    let text = "[[outbox]]\n[outbox.relay]\nlease_ttl = \"20s\"\nretention = \"forever\"\nbuffer_bytes = 7\n";
    let relay = load(text, &SERVERS).unwrap().outboxes[0]
        .section
        .relay
        .relay_config();
    assert_eq!(
        (relay.lease_ttl, relay.buffer_bytes),
        (Duration::from_secs(20), 7)
    );
    assert_eq!(relay.retention, outbox::core::Retention::Keep);
}

/// Only PostgreSQL has a readable log, and falling back to polling would surprise operators.
#[test]
fn a_log_of_another_database_is_refused() {
    let log = "[[outbox]]\n[outbox.log]\nread = true";
    for url in ["mysql://relay:hunter2@db/shop", "sqlite://shop.db"] {
        let servers = [("DATABASE_URL", url), SERVERS[1]];
        let error = load(log, &servers).unwrap_err().to_string();
        assert!(error.ends_with("the relay then polls the table"), "{error}");
        load("", &servers).unwrap();
    }
    load(log, &SERVERS).unwrap();
}

#[test]
fn log_address_defaults_to_database_address() {
    let address = |text: &str, variables: &[(&str, &str)]| {
        let variables = [&SERVERS[..], variables].concat();
        let config = load(text, &variables).unwrap();
        config.outboxes[0].log_url.expose().to_owned()
    };
    let in_file = "[[outbox]]\n[outbox.log]\nurl = \"postgres://log@db/shop\"";
    assert_eq!(address("", &[]), SERVERS[0].1);
    assert_eq!(address(in_file, &[]), "postgres://log@db/shop");
    let variable = ("OUTBOX_OUTBOX_DATABASE_LOG_URL", "postgres://own@db/shop");
    assert_eq!(address(in_file, &[variable]), variable.1);
    let printed = load(DEFAULT_FILE, &SERVERS).unwrap();
    assert_eq!(
        printed.outboxes[0].section.log.log_config(),
        outbox::log::LogConfig::default()
    );
}
