//! The programs of a run, as separate processes or as tasks of this one.
//!
//! Invariants: a program that dies is restarted, a limited number of times; stopping the run stops all programs. Not here: the work of the programs.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::cli::UNTIL_STDIN_CLOSES;
use crate::failure::{Doing, Failure};
use crate::setup::{Role, Setup};
use crate::{consumers, relay, service};

/// Maximum number of restarts of a program.
const RESTARTS_MAX: u32 = 5;

/// How long the programs may take to end after the request. Their own limits are shorter.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// The programs of a run.
#[derive(Debug)]
pub(crate) enum Workers {
    Processes(Vec<Process>),
    Tasks(Vec<Task>, CancellationToken),
}

impl Workers {
    /// Starts all programs: as processes, or as tasks if the broker is in this process.
    pub(crate) fn start(setup: &Setup, setup_path: &Path, broker: &Broker) -> Result<Self, Failure> {
        match broker {
            Broker::Nats(_) => {
                let start = |role| Process::start(role, setup_path, setup.logs());
                Ok(Self::Processes(Role::all().map(start).collect::<Result<_, _>>()?))
            }
            Broker::Memory(_) => {
                let shutdown = CancellationToken::new();
                let start = |role| {
                    let task = run_task(role, setup.clone(), broker.clone(), shutdown.clone());
                    Task {
                        role,
                        handle: tokio::spawn(task),
                    }
                };
                Ok(Self::Tasks(Role::all().map(start).collect(), shutdown.clone()))
            }
        }
    }

    /// Restarts programs that died, after a call of `warn`; returns whether the service has finished.
    pub(crate) async fn look_after(&mut self, warn: impl Fn(String)) -> Result<bool, Failure> {
        match self {
            Self::Processes(processes) => {
                let mut finished = false;
                for process in processes {
                    process.look_after(&warn)?;
                    finished |= process.is_finished_service();
                }
                Ok(finished)
            }
            Self::Tasks(tasks, _) => {
                let mut finished = false;
                let mut index = 0;
                while index < tasks.len() {
                    if !tasks[index].handle.is_finished() {
                        index += 1;
                        continue;
                    }
                    let Task { role, handle } = tasks.remove(index);
                    handle.await.or_cannot(format_args!("run {}", role.name()))??;
                    finished |= role == Role::Service;
                }
                Ok(finished || !tasks.iter().any(|task| task.role == Role::Service))
            }
        }
    }

    /// Asks all programs to end and waits for them.
    pub(crate) async fn stop(self, warn: impl Fn(String)) {
        let deadline = Instant::now() + STOP_WITHIN;
        match self {
            Self::Processes(mut processes) => {
                for process in &processes {
                    process.terminate();
                }
                for process in &mut processes {
                    process.wait(deadline, &warn).await;
                }
            }
            Self::Tasks(tasks, shutdown) => {
                shutdown.cancel();
                for Task { role, handle } in tasks {
                    let name = role.name();
                    match timeout_at(deadline, handle).await {
                        Ok(Ok(Ok(()))) => {}
                        // An interrupted service ends with an error.
                        Ok(Ok(Err(error))) if role == Role::Service => tracing::info!("{error}"),
                        Ok(Ok(Err(error))) => warn(format!("{name}: {error}")),
                        Ok(Err(panic)) => warn(format!("{name}: {panic}")),
                        Err(_) => warn(format!("{name} did not end within {STOP_WITHIN:?}")),
                    }
                }
            }
        }
    }
}

/// A program as a task.
#[derive(Debug)]
pub(crate) struct Task {
    role: Role,
    handle: JoinHandle<Result<(), Failure>>,
}

async fn run_task(
    role: Role,
    setup: Setup,
    broker: Broker,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let Broker::Memory(broker) = broker else {
        return Err(Failure::Wrong("tasks need the broker in memory".to_owned()));
    };
    match role {
        Role::Service => service::run(&setup, shutdown).await,
        Role::Relay(part) => relay::run(&setup, part, broker.publisher(), shutdown).await,
        Role::Consumer(part) => consumers::run(&setup, part, broker.subscriber(), shutdown).await,
    }
}

/// A program as a process.
#[derive(Debug)]
pub(crate) struct Process {
    role: Role,
    setup: PathBuf,
    logs: PathBuf,
    child: Child,
    ended: Option<ExitStatus>,
    restarts: u32,
}

impl Process {
    fn start(role: Role, setup: &Path, logs: PathBuf) -> Result<Self, Failure> {
        let child = spawn(role, setup, &logs)?;
        Ok(Self {
            role,
            setup: setup.to_owned(),
            logs,
            child,
            ended: None,
            restarts: 0,
        })
    }

    fn look_after(&mut self, warn: impl Fn(String)) -> Result<(), Failure> {
        let name = self.role.name();
        if self.ended.is_some() {
            return Ok(());
        }
        let Some(status) = self.child.try_wait().or_cannot(format_args!("watch {name}"))? else {
            return Ok(());
        };
        if self.role == Role::Service && status.success() {
            self.ended = Some(status);
            return Ok(());
        }
        if self.restarts == RESTARTS_MAX {
            self.ended = Some(status);
            return Err(Failure::Wrong(format!(
                "{name} ended too often, the last time with {status}"
            )));
        }
        self.restarts += 1;
        warn(format!(
            "{name} ended with {status}; it is started again ({} of {RESTARTS_MAX})",
            self.restarts
        ));
        self.child = spawn(self.role, &self.setup, &self.logs)?;
        Ok(())
    }

    fn is_finished_service(&self) -> bool {
        self.role == Role::Service && self.ended.is_some_and(|status| status.success())
    }

    #[cfg(unix)]
    fn terminate(&self) {
        let pid = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // An error means that the process has already ended.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    /// Without signals, closing its standard input tells it to end.
    #[cfg(not(unix))]
    fn terminate(&self) {}

    async fn wait(&mut self, deadline: Instant, warn: impl Fn(String)) {
        if self.ended.is_some() {
            return;
        }
        let name = self.role.name();
        drop(self.child.stdin.take());
        match timeout_at(deadline, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => {}
            // An interrupted service ends with an error.
            Ok(Ok(_)) if self.role == Role::Service => {}
            // It was stopped before it had begun to listen for signals.
            Ok(Ok(status)) if is_terminated(status) => {}
            Ok(Ok(status)) => warn(format!("{name} did not end cleanly ({status})")),
            Ok(Err(error)) => warn(format!("cannot wait for {name}: {error}")),
            Err(_) => {
                warn(format!("{name} did not end within {STOP_WITHIN:?} and is killed"));
                let _ = self.child.kill().await;
            }
        }
    }
}

#[cfg(unix)]
fn is_terminated(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(rustix::process::Signal::TERM.as_raw())
}

#[cfg(not(unix))]
fn is_terminated(_: ExitStatus) -> bool {
    false
}

fn spawn(role: Role, setup: &Path, logs: &Path) -> Result<Child, Failure> {
    let name = role.name();
    let start = || -> std::io::Result<Child> {
        // Standard output and standard error, for example the text of a panic, go to the log of the program.
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(logs.join(format!("{name}.log")))?;
        Command::new(std::env::current_exe()?)
            .args(role.arguments())
            .arg("--setup")
            .arg(setup)
            // Its standard input closes when this process ends, however it ends, so no program outlives its run.
            .arg(UNTIL_STDIN_CLOSES)
            .stdin(Stdio::piped())
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log))
            .kill_on_drop(true)
            .spawn()
    };
    let child = start().or_cannot(format_args!("start {name}"))?;
    // The process id lets a person kill the program and see that the result stays the same.
    tracing::info!(pid = child.id(), "started {name}");
    Ok(child)
}
