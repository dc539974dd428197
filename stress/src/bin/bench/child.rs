//! Runs a relay or an inbox in a child process, to measure its memory and processor time.
//!
//! Closing standard input ends the child. It prints [`Report`] as one line of JSON.

use std::fs;
use std::process::{ExitStatus, Stdio};
use std::time::Instant;

use clap::Args;
use outbox_core::shutdown::CancellationToken;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::servers::{Schema, Stream};
use crate::{Result, processor};

/// The servers and names that a child works with.
#[derive(Args, Clone, Debug)]
pub(crate) struct Place {
    #[arg(long)]
    pub(crate) postgres_url: String,
    #[arg(long)]
    pub(crate) schema: String,
    #[arg(long)]
    pub(crate) nats_url: String,
    #[arg(long)]
    pub(crate) stream: String,
    #[arg(long)]
    pub(crate) prefix: String,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Report {
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
    pub(crate) peak_bytes: u64,
}

/// Runs `work` until it ends or the parent closes standard input.
pub(crate) async fn serve(work: impl AsyncFnOnce(CancellationToken) -> Result<u64>) -> Result<()> {
    let shutdown = CancellationToken::new();
    let parent_gone = shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
        parent_gone.cancel();
    });
    let start = Instant::now();
    let report = Report {
        messages: work(shutdown).await?,
        seconds: start.elapsed().as_secs_f64(),
        peak_bytes: peak_bytes()?,
    };
    println!("{}", serde_json::to_string(&report)?);
    // The thread that reads standard input cannot be interrupted.
    std::process::exit(0);
}

fn peak_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kibibytes = kibibytes.ok_or("no VmHWM in /proc/self/status")?;
    Ok(kibibytes.trim().parse::<u64>()? * 1024)
}

#[derive(Debug)]
pub(crate) struct Child(tokio::process::Child);

impl Child {
    pub(crate) fn start(
        subcommand: &str,
        schema: &Schema,
        stream: &Stream,
        arguments: &[&str],
    ) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .arg(subcommand)
            .args(["--postgres-url", &schema.url, "--schema", &schema.name])
            .args(["--nats-url", &stream.nats_url, "--stream", &stream.name])
            .args(["--prefix", stream.prefix()])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self(child))
    }

    pub(crate) async fn ended(mut self) -> Result<Report> {
        // `wait` would close the child's standard input and so end the child.
        let stdin = self.0.stdin.take();
        let report = self.report().await;
        drop(stdin);
        report
    }

    pub(crate) async fn stop(mut self) -> Result<Report> {
        drop(self.0.stdin.take());
        self.report().await
    }

    async fn report(&mut self) -> Result<Report> {
        let mut text = String::new();
        if let Some(stdout) = &mut self.0.stdout {
            stdout.read_to_string(&mut text).await?;
        }
        let status: ExitStatus = self.0.wait().await?;
        if !status.success() {
            return Err(format!("the measured process failed ({status}); see above").into());
        }
        Ok(serde_json::from_str(text.trim())?)
    }

    /// Resolution: 0.01 s.
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        let id = self.0.id().ok_or("the measured process has ended")?;
        Ok(processor::Times::of(id)?.own)
    }
}
