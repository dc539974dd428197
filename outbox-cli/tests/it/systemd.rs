//! The printed systemd unit, checked by systemd's own tools, and notifications of the relay.
#![cfg(unix)]

use std::collections::HashSet;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};

use outbox::testing::{backend_url, eventually};

use crate::place::{Kind, Place, Program};

const EXPOSURE_MAX: &str = "--threshold=15";

fn printed() -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args(["print", "systemd"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn analyze(program: &str, arguments: &[&str], unit: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outbox-relay.service");
    let unit = unit.replace("/usr/local/bin/outbox", env!("CARGO_BIN_EXE_outbox"));
    std::fs::write(&file, unit).unwrap();
    Command::new(program).args(arguments).arg(&file).output().unwrap()
}

#[test]
fn systemd_finds_nothing_wrong_in_the_unit() {
    let Some(program) = backend_url("OUTBOX_TEST_SYSTEMD_ANALYZE_BIN") else {
        return;
    };
    let verify = ["verify", "--man=no"];
    let output = analyze(&program, &verify, &printed());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let misspelt = analyze(
        &program,
        &verify,
        &printed().replace("WatchdogSec=", "WatchdogSecs="),
    );
    let warnings = String::from_utf8_lossy(&misspelt.stderr).into_owned();
    assert!(warnings.contains("WatchdogSecs"), "{misspelt:?}");
}

#[test]
fn systemd_exposure_of_the_unit_is_low() {
    let Some(program) = backend_url("OUTBOX_TEST_SYSTEMD_ANALYZE_BIN") else {
        return;
    };
    let security = ["security", "--no-pager", "--offline=true", EXPOSURE_MAX];
    let output = analyze(&program, &security, &printed());
    let judgement = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{judgement}");
    let protects = |line: &&str| !line.starts_with("PrivateUsers=") && !line.starts_with("SystemCallFilter=");
    let unit = printed();
    let exposed: Vec<&str> = unit.lines().filter(protects).collect();
    let output = analyze(&program, &security, &exposed.join("\n"));
    assert!(
        !output.status.success(),
        "a unit without two of its protections passes as well"
    );
}

/// System calls permitted by `SystemCallFilter=`: listed groups and `@default`, minus groups
/// after `~`.
fn allowed(program: &str, unit: &str) -> HashSet<String> {
    let output = Command::new(program)
        .args(["syscall-filter", "--no-pager"])
        .output()
        .unwrap();
    let lists = String::from_utf8(output.stdout).unwrap();
    let mut allowed = members(&lists, "@default");
    for filter in unit
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="))
    {
        let (is_denied, groups) = match filter.strip_prefix('~') {
            Some(groups) => (true, groups),
            None => (false, filter),
        };
        for call in groups.split(' ').flat_map(|group| members(&lists, group)) {
            match is_denied {
                true => allowed.remove(&call),
                false => allowed.insert(call),
            };
        }
    }
    allowed
}

fn members(lists: &str, group: &str) -> HashSet<String> {
    let from_group = lists.lines().skip_while(|line| *line != group).skip(1);
    let names = from_group
        .take_while(|line| line.starts_with(' ') || line.is_empty())
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let names: Vec<&str> = names.collect();
    assert!(!names.is_empty(), "systemd knows no group {group}");
    names
        .into_iter()
        .flat_map(|name| match name.starts_with('@') {
            true => members(lists, name),
            false => HashSet::from([name.to_owned()]),
        })
        .collect()
}

fn calls(table: &str) -> Vec<&str> {
    let rows = table.lines().skip(2).take_while(|line| !line.starts_with("---"));
    rows.filter_map(|row| row.split_whitespace().last()).collect()
}

/// A denied call fails only inside the service, so other tests cannot detect it. strace records
/// all calls of a relay from start to end.
#[tokio::test]
async fn unit_permits_all_system_calls_of_the_relay() {
    let (Some(analyze), Some(strace)) = (
        backend_url("OUTBOX_TEST_SYSTEMD_ANALYZE_BIN"),
        backend_url("OUTBOX_TEST_STRACE_BIN"),
    ) else {
        return;
    };
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    let table = place.folder.path().join("calls");
    let socket = place.folder.path().join("notify");
    let _systemd = UnixDatagram::bind(&socket).unwrap();
    let by_name = |url: &str| url.replace("127.0.0.1", "localhost");
    let (url, nats) = (by_name(&place.url), by_name(&place.nats));
    let variables = [
        ("DATABASE_URL", url.as_str()),
        ("NATS_URL", nats.as_str()),
        ("NOTIFY_SOCKET", socket.to_str().unwrap()),
    ];
    // With strace's option `-D`, the child process of this test is the relay itself.
    let mut traced = Command::new(strace);
    traced.args(["-D", "-f", "-c", "-o"]).arg(&table);
    traced.arg(env!("CARGO_BIN_EXE_outbox"));
    let mut program = Program::start_by(traced, &place.outbox("shop"), &variables);
    program.until_ready().await;
    place.record(3).await;
    eventually("the last event on the stream", async || {
        place.on_stream().await.len() == 3
    })
    .await;
    program.get("/metrics").await;
    program.terminate();
    assert_eq!(program.end().await.code(), Some(0), "{}", program.log());
    let mut written = String::new();
    eventually("the table of calls", async || {
        written = std::fs::read_to_string(&table).unwrap_or_default();
        written.trim_end().ends_with("total")
    })
    .await;
    let made = calls(&written);
    assert!(made.contains(&"connect") && made.contains(&"execve"), "{written}");
    let allowed = allowed(&analyze, &printed());
    let denied: Vec<&&str> = made.iter().filter(|call| !allowed.contains(**call)).collect();
    assert!(denied.is_empty(), "{denied:?}");
    assert!(!allowed.contains("mount") && !allowed.contains("setuid"));
    place.close().await;
}

struct Systemd {
    socket: UnixDatagram,
    told: Vec<String>,
}

impl Systemd {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            told: Vec::new(),
        }
    }

    fn hear(&mut self, wanted: &str) -> usize {
        let mut buffer = [0; 64];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            let told = String::from_utf8_lossy(&buffer[..length]).into_owned();
            self.told.push(told);
        }
        self.told.iter().filter(|told| *told == wanted).count()
    }

    fn forget(&mut self) {
        self.hear("");
        self.told.clear();
    }
}

#[tokio::test]
async fn stuck_relay_is_alive_not_ready_for_systemd() {
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    let path = place.folder.path().join("notify");
    let mut systemd = Systemd::at(&path);
    let variables = [
        ("DATABASE_URL", place.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "300000"),
    ];
    let config = format!("{}[outbox.relay]\nstuck_after = \"1s\"\n", place.outbox("shop"));
    let mut program = Program::start(&config, &variables);
    eventually("a relay that is ready and alive", async || {
        systemd.hear("READY=1") == 1 && systemd.hear("WATCHDOG=1") > 0
    })
    .await;
    let schema = &place.name;
    let rename = |from: &str, to: &str| format!("ALTER TABLE {schema}.{from} RENAME TO {to}");
    place.execute(&rename("outbox_messages", "hidden")).await;
    eventually("a relay that is stuck", async || {
        program.get("/readyz").await.1.contains("stuck: shop: ")
    })
    .await;
    systemd.forget();
    eventually("signs of life", async || systemd.hear("WATCHDOG=1") >= 3).await;
    let (status, answer) = program.get("/livez").await;
    assert!(status == 200 && answer.contains("stuck: shop: "), "{answer}");
    assert_eq!(program.get("/readyz").await.0, 503);
    place.execute(&rename("hidden", "outbox_messages")).await;
    eventually("a relay that is ready", async || {
        systemd.forget();
        program.get("/readyz").await.0 == 200
    })
    .await;
    program.terminate();
    eventually("STOPPING=1", async || systemd.hear("STOPPING=1") == 1).await;
    assert_eq!(program.end().await.code(), Some(0), "{}", program.log());
    place.close().await;
}

/// A waiting relay is alive, so systemd does not restart it, but not ready.
#[tokio::test]
async fn relay_waiting_for_server_is_not_ready_for_systemd() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let mut systemd = Systemd::at(&path);
    let mut variables = vec![
        ("DATABASE_URL", "sqlite::memory:"),
        ("NATS_URL", "nats://127.0.0.1:1"),
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "300000"),
    ];
    let mut program = Program::start("", &variables);
    eventually("signs of life", async || systemd.hear("WATCHDOG=1") >= 3).await;
    program.terminate();
    assert_eq!(program.end().await.code(), Some(0), "{}", program.log());
    assert_eq!((systemd.hear("READY=1"), systemd.hear("STOPPING=1")), (0, 1));

    systemd.forget();
    variables.push(("WATCHDOG_PID", "1"));
    let mut program = Program::start("", &variables);
    eventually("the wait for nats", async || {
        program.log().contains("waiting for nats")
    })
    .await;
    program.terminate();
    assert_eq!(program.end().await.code(), Some(0), "{}", program.log());
    assert_eq!(systemd.hear("WATCHDOG=1"), 0);
}
