//! The relay of the program `outbox` when it is built in several ways, such as with another allocator: how fast it drains an outbox, and its memory.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::process::Child;
use tokio::time::{sleep, timeout};

use crate::backlog::MEBIBYTE;
use crate::child::peak_bytes;
use crate::figure::Figure;
use crate::load::{AGGREGATES, fill};
use crate::program::Program;
use crate::raw::per_second;
use crate::relay::{self, Retention};
use crate::servers::{Schema, Servers, Stream};
use crate::{Options, Result};

/// The longest wait for a drain, and for the end of the program.
const PATIENCE: Duration = Duration::from_secs(300);
/// The interval between two looks at the stream.
const LOOK: Duration = Duration::from_millis(5);

/// What to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Asked {
    #[command(flatten)]
    pub(crate) options: Options,
    /// A way to build the program, and its path. The others are compared to the first one.
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = named, required = true)]
    programs: Vec<(String, PathBuf)>,
}

fn named(text: &str) -> std::result::Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("write NAME=PATH")?;
    Ok((name.to_owned(), path.into()))
}

/// Measures all programs, in turns.
pub(crate) async fn figures(servers: &Servers, asked: &Asked) -> Result<Vec<Figure>> {
    let messages = asked.options.size(300_000, 50_000);
    let mut measured = vec![(Vec::new(), Vec::new()); asked.programs.len()];
    for run in 1..=asked.options.runs() {
        eprintln!("programs: run {run} of {}", asked.options.runs());
        for ((_, path), (rates, peaks)) in asked.programs.iter().zip(&mut measured) {
            let (rate, peak) = drain(servers, path, messages).await?;
            rates.push(rate);
            peaks.push(peak);
        }
    }
    let mut figures = Vec::new();
    let (base_rates, base_peaks) = measured[0].clone();
    for ((name, _), (rates, peaks)) in asked.programs.iter().zip(&measured).skip(1) {
        figures.push(Figure::against(
            format!("program_{name}"),
            "events/s",
            rates,
            &base_rates,
        ));
        let name = format!("program_{name}_memory");
        figures.push(Figure::against(name, "MiB", peaks, &base_peaks));
    }
    Ok(figures)
}

/// Messages per second, from the first on the stream to the last, and the largest memory of the process in MiB.
async fn drain(servers: &Servers, path: &Path, messages: u64) -> Result<(f64, f64)> {
    let outbox = servers.outbox().await?;
    fill(&outbox, AGGREGATES, messages).await?;
    let stream = servers.stream().await?;
    let program = Program::over(path, &outbox, &stream)?;
    let mut child = program.start(&["relay", "run"])?;
    let id = child.id().ok_or("the program has ended before it began")?;
    let drained = drained(&mut child, &outbox, &stream, messages);
    let rate = timeout(PATIENCE, drained)
        .await
        .map_err(|_| "the program did not drain the outbox in time")??;
    let peak = peak_bytes(id)?.ok_or("the program has ended by itself")?;
    terminate(id)?;
    let status = timeout(PATIENCE, child.wait())
        .await
        .map_err(|_| "the program did not end in time")??;
    if !status.success() {
        return Err(format!("the program failed ({status}); see above").into());
    }
    relay::settled(&outbox, Retention::Keep, messages).await?;
    stream.remove(messages).await?;
    outbox.remove().await?;
    Ok((rate, peak as f64 / MEBIBYTE))
}

async fn drained(child: &mut Child, outbox: &Schema, stream: &Stream, messages: u64) -> Result<f64> {
    let mut first = None;
    loop {
        let now = stream.messages().await?;
        if now > 0 && first.is_none() {
            first = Some((Instant::now(), now));
        }
        if let (true, Some((begun, before))) = (now >= messages, first) {
            let rate = per_second(messages - before, begun.elapsed());
            while outbox.unsettled().await? > 0 {
                sleep(LOOK).await;
            }
            return Ok(rate);
        }
        if let Some(status) = child.try_wait()? {
            return Err(format!("the program ended ({status}); see above").into());
        }
        sleep(LOOK).await;
    }
}

fn terminate(process: u32) -> Result<()> {
    let process = i32::try_from(process)?;
    let process = rustix::process::Pid::from_raw(process).ok_or("no process has the number 0")?;
    Ok(rustix::process::kill_process(
        process,
        rustix::process::Signal::TERM,
    )?)
}
