//! A nats-server of a run's own, with a user for each program that talks to it. The user has the permissions that `outbox print nats-permissions` prints for what the
//! program does, and no others.
//!
//! Invariant: what the server refuses stands in its log, so a refusal is known also if nobody waits for the answer. The server ends with the run, unless the run is killed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use outbox::testing::free_port;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::failure::{Doing, Failure};
use crate::logins::print;
use crate::setup::{Role, Stream, logs};

/// The user of the run itself, who may do everything.
const OWNER: &str = "run";

/// How long the server may take until it listens.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// Time between two looks at the server.
const INTERVAL: Duration = Duration::from_millis(50);

/// A server that runs. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    _process: Child,
    port: u16,
    password: String,
    log: PathBuf,
}

impl Server {
    /// Starts the server for the stream of a run. `printer` is the program `outbox`.
    pub(crate) async fn start(
        program: &Path,
        printer: &Path,
        stream: &Stream,
        work_dir: &Path,
    ) -> Result<Self, Failure> {
        let folder = work_dir.join("nats");
        fs::create_dir_all(&folder).or_cannot(format_args!("make {}", folder.display()))?;
        let config = folder.join("nats.conf");
        fs::write(&config, configuration(printer, stream)?)
            .or_cannot(format_args!("write {}", config.display()))?;
        // A password that begins with a digit could be read as a number.
        let password = format!("p{}", Uuid::new_v4().simple());
        let (port, log) = (free_port(), logs(work_dir).join("nats-server.log"));
        let users = programs().map(Role::name).chain([OWNER.to_owned()]);
        let mut command = Command::new(program);
        command
            .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
            .arg(&folder)
            .arg("-c")
            .arg(&config)
            .arg("-l")
            .arg(&log)
            .envs(users.map(|user| (variable(&user), password.clone())))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        // What interrupts the run at a terminal does not end the server first.
        #[cfg(unix)]
        command.process_group(0);
        let mut process = command
            .spawn()
            .or_cannot(format_args!("start {}", program.display()))?;
        let deadline = Instant::now() + STARTS_WITHIN;
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            let ended = process.try_wait().or_cannot("watch nats-server")?;
            if ended.is_some() || Instant::now() > deadline {
                let log = log.display();
                return Err(Failure::Wrong(format!(
                    "nats-server does not listen; its log is {log}"
                )));
            }
            sleep(INTERVAL).await;
        }
        Ok(Self {
            _process: process,
            port,
            password,
            log,
        })
    }

    fn url_of(&self, user: &str) -> String {
        format!("nats://{user}:{}@127.0.0.1:{}", self.password, self.port)
    }

    /// Its address with the user of the run itself.
    pub(crate) fn url(&self) -> String {
        self.url_of(OWNER)
    }

    /// Its addresses with the users of the programs, by their names.
    pub(crate) fn urls(&self) -> BTreeMap<String, String> {
        programs()
            .map(|role| (role.name(), self.url_of(&role.name())))
            .collect()
    }

    /// What it has refused so far.
    pub(crate) fn refused(&self) -> Result<Vec<String>, Failure> {
        let log = fs::read_to_string(&self.log).or_cannot(format_args!("read {}", self.log.display()))?;
        let is_refusal = |line: &&str| line.contains("Violation");
        Ok(log.lines().filter(is_refusal).map(str::to_owned).collect())
    }

    /// Waits until it has refused something.
    pub(crate) async fn first_refusal(&self) -> Result<(), Failure> {
        while self.refused()?.is_empty() {
            sleep(INTERVAL).await;
        }
        Ok(())
    }
}

/// The programs that talk to NATS. The service does not know it.
fn programs() -> impl Iterator<Item = Role> {
    Role::all().filter(|role| *role != Role::Service)
}

/// The configuration of the server: its users. Their passwords are in its environment.
fn configuration(printer: &Path, stream: &Stream) -> Result<String, Failure> {
    let mut users = format!("{{ user: {OWNER}, password: ${} }}\n", variable(OWNER));
    for role in programs() {
        let name = role.name();
        let mut words = vec!["nats-permissions", "--user", &name];
        words.extend(["--stream", &stream.name, "--prefix", &stream.prefix]);
        words.extend(duties(role));
        users.push_str(&print(printer, &words)?);
    }
    Ok(format!("authorization {{ users = [\n{users}] }}\n"))
}

/// The variable from which the server takes a password, as `outbox print` names it.
fn variable(user: &str) -> String {
    format!("OUTBOX_{}_PASSWORD", user.to_uppercase().replace('-', "_"))
}

/// What a program does, in the words of `outbox print nats-permissions`.
fn duties(role: Role) -> Vec<&'static str> {
    match role {
        Role::Service => Vec::new(),
        Role::Relay(_) => vec!["--role", "relay"],
        // An inbox shows how old its oldest message is, for which it needs the last one.
        Role::Consumer(part) => {
            let mut words = vec!["--role", "consumer", "--role", "make-consumer"];
            words.extend(["--role", "sequence", "--consumer", part.name()]);
            words
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::Part;

    #[test]
    fn passwords_are_where_the_printed_users_look_for_them() {
        assert_eq!(
            variable(&Role::Relay(Part::Service).name()),
            "OUTBOX_RELAY_SERVICE_PASSWORD"
        );
    }
}
