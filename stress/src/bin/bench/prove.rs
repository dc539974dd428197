//! The cost of `outbox prove`: the time and the memory of a ledger over PostgreSQL, a stream and an inbox.
//!
//! The ledger must balance, with as many messages at each place as were made; otherwise the run fails.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use sea_orm::ConnectionTrait as _;

use crate::backlog::MEBIBYTE;
use crate::figure::{Figure, Target};
use crate::load::{AGGREGATES, fill};
use crate::program::Program;
use crate::raw::per_second;
use crate::relay::{self, Retention};
use crate::servers::{Schema, Servers, Stream};
use crate::{Options, Result, check};

/// What `outbox_admin::prove::MEMORY_MAX` promises, in MiB: the memory of a ledger, without drivers and allocator.
const MEMORY_MAX: f64 = 64.0;

/// The consumer whose inbox has all events.
const CONSUMER: &str = "books";

/// What to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Asked {
    #[command(flatten)]
    pub(crate) options: Options,
    /// The program `outbox`.
    #[arg(long)]
    program: PathBuf,
    /// Messages of the ledger, a multiple of 1,000.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(AGGREGATES..))]
    messages: u64,
}

/// Measures the ledger of many messages and that of a thousand, in turns.
pub(crate) async fn figures(servers: &Servers, asked: &Asked) -> Result<Vec<Figure>> {
    let messages = asked.options.size(asked.messages, asked.messages / 10) / AGGREGATES * AGGREGATES;
    eprintln!("prove: recording, publishing and handling {messages} messages");
    let many = World::make(servers, messages.max(AGGREGATES)).await?;
    let few = World::make(servers, AGGREGATES).await?;
    let (mut seconds, mut rates, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    let (mut small, mut added) = (Vec::new(), Vec::new());
    for run in 1..=asked.options.runs() {
        eprintln!("prove: run {run} of {}", asked.options.runs());
        let (_, base) = few.prove(&asked.program).await?;
        let (elapsed, peak) = many.prove(&asked.program).await?;
        seconds.push(elapsed.as_secs_f64());
        rates.push(per_second(many.messages, elapsed));
        peaks.push(peak);
        small.push(base);
        added.push(peak - base);
    }
    many.remove().await?;
    few.remove().await?;
    Ok(vec![
        Figure::alone("prove_seconds", "s", &seconds),
        Figure::alone("prove_rate", "messages/s", &rates),
        Figure::alone("prove_memory", "MiB", &peaks),
        Figure::alone("prove_memory_few", "MiB", &small),
        Figure::alone("prove_memory_added", "MiB", &added).target(Target::AtMost(MEMORY_MAX)),
    ])
}

/// An outbox whose messages are published and handled.
#[derive(Debug)]
struct World {
    outbox: Schema,
    stream: Stream,
    messages: u64,
}

impl World {
    async fn make(servers: &Servers, messages: u64) -> Result<Self> {
        let outbox = servers.outbox().await?;
        outbox_inbox::migrate(&outbox.db).await?;
        fill(&outbox, AGGREGATES, messages).await?;
        let stream = servers.stream().await?;
        let relay = relay::start(&outbox, &stream, Retention::Keep, Some(messages))?;
        check("messages published", relay.ended().await?.messages, messages)?;
        relay::settled(&outbox, Retention::Keep, messages).await?;
        stream.add_consumer_at_end(CONSUMER).await?;
        // As an inbox writes them.
        let handled = format!(
            "INSERT INTO inbox_messages (consumer, id, status, attempts, processed_at, expires_at) \
             SELECT '{CONSUMER}', id, 1, 0, clock_timestamp(), clock_timestamp() + interval '15 days' FROM outbox_messages"
        );
        outbox.db.execute_unprepared(&handled).await?;
        // Only superusers may do this. Without it the figures are slightly worse.
        let _ = outbox.db.execute_unprepared("CHECKPOINT").await;
        Ok(Self {
            outbox,
            stream,
            messages,
        })
    }

    /// The time, and the memory in MiB.
    async fn prove(&self, program: &Path) -> Result<(Duration, f64)> {
        let program = Program::over(program, &self.outbox, &self.stream)?;
        let ended = program
            .run(&["prove", "--since", "1d", "--until", "0s", "-o", "json"])
            .await?;
        let text = String::from_utf8_lossy(&ended.output.stdout);
        if !ended.output.status.success() {
            return Err(format!("the ledger does not balance ({}): {text}", ended.output.status).into());
        }
        let proof: serde_json::Value = serde_json::from_str(&text)?;
        let found = |count: &serde_json::Value| count.as_u64().unwrap_or_default();
        check("committed", found(&proof["outbox"]["committed"]), self.messages)?;
        check("on the stream", found(&proof["stream"]["events"]), self.messages)?;
        let books = &proof["consumers"][0];
        check("handled", found(&books["handled"]), self.messages)?;
        Ok((ended.elapsed, ended.peak_bytes as f64 / MEBIBYTE))
    }

    async fn remove(self) -> Result<()> {
        self.stream.remove(self.messages).await?;
        self.outbox.remove().await
    }
}
