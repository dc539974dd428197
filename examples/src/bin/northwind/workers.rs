//! The programs of a run, as separate processes or as tasks of this process. A dead process is
//! restarted, a limited number of times.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::setup::{Role, Setup};
use crate::{run_program, warn};

const RESTARTS_MAX: u32 = 5;

/// Time limit for the stop of a program. The programs' own limits are shorter.
const STOP_WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Workers {
    programs: JoinSet<(Role, Result<()>)>,
    shutdown: CancellationToken,
    service_has_finished: bool,
}

impl Workers {
    pub(crate) fn start(setup: &Arc<Setup>, setup_path: &Path, broker: &Broker) -> Self {
        let mut programs = JoinSet::new();
        let shutdown = CancellationToken::new();
        for role in Role::all() {
            let (setup, shutdown) = (setup.clone(), shutdown.clone());
            match broker.clone() {
                Broker::Nats(..) => {
                    let process = keep_running(role, setup, setup_path.to_owned(), shutdown);
                    programs.spawn(async move { (role, process.await) });
                }
                Broker::Memory(broker) => {
                    programs.spawn(async move {
                        (role, run_program(role, &setup, Some(&broker), shutdown).await)
                    });
                }
            }
        }
        Self {
            programs,
            shutdown,
            service_has_finished: false,
        }
    }

    /// Whether the service has finished.
    /// If another program of the demo has ended with an error, returns the error.
    pub(crate) fn service_has_finished(&mut self) -> Result<bool> {
        while let Some(ended) = self.programs.try_join_next() {
            let (role, result) = ended?;
            result?;
            self.service_has_finished |= role == Role::Service;
        }
        Ok(self.service_has_finished)
    }

    pub(crate) async fn stop(mut self) -> Result<()> {
        self.shutdown.cancel();
        while let Some(ended) = self.programs.join_next().await {
            if let (role, Err(error)) = ended?
                && role != Role::Service
            {
                let error = outbox_core::describe(error.as_ref());
                warn(&format!("{}: {error}", role.name()));
            }
        }
        Ok(())
    }
}

async fn keep_running(
    role: Role,
    setup: Arc<Setup>,
    setup_path: PathBuf,
    shutdown: CancellationToken,
) -> Result<()> {
    let name = role.name();
    for restart in 1.. {
        let child = spawn(&name, &setup_path, &setup.log_file(&name));
        let mut child = child.with_context(|| format!("cannot start {name}"))?;
        // `wait` would close the child's standard input, so it is taken first.
        let stdin = child.stdin.take();
        let Some(status) = shutdown.run_until_cancelled(child.wait()).await else {
            drop(stdin);
            let ended = timeout(STOP_WITHIN, child.wait()).await;
            let status = ended.context("did not end in time; the process was killed")??;
            ensure!(status.success(), "did not end cleanly ({status})");
            return Ok(());
        };
        let status = status?;
        if role == Role::Service && status.success() {
            return Ok(());
        }
        ensure!(
            restart <= RESTARTS_MAX,
            "{name} ended too often, the last time with {status}"
        );
        warn(&format!(
            "{name} ended with {status}; restart {restart} of {RESTARTS_MAX} follows"
        ));
    }
    Ok(())
}

fn spawn(name: &str, setup: &Path, log: &Path) -> Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    let child = Command::new(std::env::current_exe()?)
        .args(["program", name])
        .arg(setup)
        // The process ends when its standard input closes: at a stop, and when this process ends
        // for any reason.
        .stdin(Stdio::piped())
        .stdout(Stdio::from(log.try_clone()?))
        .stderr(Stdio::from(log))
        .kill_on_drop(true)
        .spawn()?;
    // The log has the process id, for tests and people that kill the program.
    tracing::info!(pid = child.id(), "started {name}");
    Ok(child)
}
