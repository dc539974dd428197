//! Files under `deploy` match the program: options, paths and port.

use clap::{CommandFactory, Parser};
use outbox_cli::OutboxCommand;
use outbox_cli::config::{Config, Environment, File};

const UNIT: &str = include_str!("../../deploy/outbox-relay.service");
const CONTAINERFILE: &str = include_str!("../../deploy/Containerfile");
const MANIFEST: &str = include_str!("../../deploy/kubernetes.yaml");
const HTTP: &str = include_str!("../../src/commands/relay/http.rs");

#[derive(Debug, Parser)]
struct Program {
    #[command(subcommand)]
    command: OutboxCommand,
}

#[track_caller]
fn parse<'a>(words: impl IntoIterator<Item = &'a str>) {
    let words: Vec<&str> = std::iter::once("outbox").chain(words).collect();
    let parsed = Program::try_parse_from(&words).unwrap();
    let shown = format!("{:?}", parsed.command);
    assert!(
        shown.contains("Run") && shown.contains("/etc/outbox/outbox.toml"),
        "{shown}"
    );
}

fn list(line: &str) -> Vec<String> {
    let (_, list) = line.split_at(line.find('[').unwrap());
    serde_json::from_str(list).unwrap()
}

#[track_caller]
fn line_with<'a>(text: &'a str, start: &str) -> &'a str {
    let found = text.lines().map(str::trim).find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("no line starts with {start}"))
}

fn port() -> String {
    let servers = [("DATABASE_URL", "sqlite://a"), ("NATS_URL", "nats://a")];
    let environment: Environment = servers.into_iter().collect();
    let config = Config::new(File::default(), &environment).unwrap();
    config.http.address.port().to_string()
}

#[test]
fn the_command_line_is_consistent() {
    Program::command().debug_assert();
}

#[test]
fn unit_uses_existing_options() {
    let start = line_with(UNIT, "ExecStart=");
    let words: Vec<&str> = start.split_whitespace().collect();
    assert_eq!(words[0], "ExecStart=/usr/local/bin/outbox");
    parse(words[1..].iter().copied());
    assert_eq!(line_with(UNIT, "Type="), "Type=notify");
    assert_eq!(
        line_with(UNIT, "RestartPreventExitStatus="),
        "RestartPreventExitStatus=2"
    );
    is_longer_than_a_shutdown(line_with(UNIT, "TimeoutStopSec=").split_once('=').unwrap().1);
}

#[test]
fn image_uses_existing_options() {
    assert_eq!(
        list(line_with(CONTAINERFILE, "ENTRYPOINT")),
        ["/usr/local/bin/outbox"]
    );
    parse(list(line_with(CONTAINERFILE, "CMD")).iter().map(String::as_str));
    assert_eq!(line_with(CONTAINERFILE, "EXPOSE"), format!("EXPOSE {}", port()));
    let built = line_with(CONTAINERFILE, "RUN cargo build");
    assert!(built.ends_with("-p outbox-cli --bin outbox"), "{built}");
    assert_eq!(
        line_with(CONTAINERFILE, "COPY --from=build /src/"),
        "COPY --from=build /src/target/*-unknown-linux-musl/release/outbox /usr/local/bin/outbox"
    );
    let (_, user) = line_with(CONTAINERFILE, "USER ").split_once(' ').unwrap();
    let user = user.split_once(':').unwrap().0;
    assert_eq!(line_with(MANIFEST, "runAsUser:"), format!("runAsUser: {user}"));
}

#[test]
fn manifest_probes_existing_paths_and_port() {
    parse(list(line_with(MANIFEST, "args:")).iter().map(String::as_str));
    let port = port();
    let ports: Vec<&str> = MANIFEST
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("port: ")
                .or(line.trim().strip_prefix("containerPort: "))
        })
        .collect();
    assert_eq!(ports, [port.as_str(); 3]);
    assert!(MANIFEST.contains(&format!("prometheus.io/port: \"{port}\"")));
    let paths: Vec<&str> = MANIFEST
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("path: ")
                .or(line.trim().strip_prefix("prometheus.io/path: "))
        })
        .collect();
    assert_eq!(paths, ["/metrics", "/livez", "/readyz"]);
    for path in paths {
        assert!(HTTP.contains(&format!("\"{path}\"")), "{path}");
    }
    is_longer_than_a_shutdown(
        line_with(MANIFEST, "terminationGracePeriodSeconds:")
            .split_once(": ")
            .unwrap()
            .1,
    );
}

/// The configuration inside the manifest must be valid and answer probes from outside the
/// container.
#[test]
fn the_file_in_the_manifest_is_a_configuration() {
    let (_, after) = MANIFEST.split_once("outbox.toml: |\n").unwrap();
    let (block, _) = after.split_once("---").unwrap();
    let lines: Vec<&str> = block
        .lines()
        .map(|line| line.strip_prefix("    ").unwrap_or(line))
        .collect();
    let file = File::parse("outbox.toml", &lines.join("\n")).unwrap();
    assert!(file.http.address.ip().is_unspecified());
    assert_eq!(file.http.address.port().to_string(), port());
}

#[track_caller]
fn is_longer_than_a_shutdown(seconds: &str) {
    let shutdown = outbox::core::RelayConfig::default().shutdown_timeout.as_secs();
    assert!(seconds.parse::<u64>().unwrap() > shutdown + 4, "{seconds}");
}
