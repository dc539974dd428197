//! The cost of `outbox prove`: the time and the memory of a ledger over PostgreSQL, a stream and an inbox.
//!
//! The ledger must balance, with as many messages at each place as were made; otherwise the run fails.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Args;
use sea_orm::ConnectionTrait as _;
use tokio::process::Command;
use tokio::time::sleep;

use crate::child::peak_bytes;
use crate::figure::{Figure, Series};
use crate::load::{AGGREGATES, fill};
use crate::raw::per_second;
use crate::relay::{self, Retention};
use crate::servers::{Schema, Servers, Stream};
use crate::{MEBIBYTE, Options, Result, check};

/// What `outbox_admin::prove::MEMORY_MAX` promises, in MiB: the memory of a ledger, without drivers and allocator.
const MEMORY_MAX: f64 = 64.0;
/// The interval between two readings of the memory of the program, which cannot be read after its
/// end.
const READ_EVERY: Duration = Duration::from_millis(2);

/// The consumer whose inbox has all events.
const CONSUMER: &str = "books";

/// What to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct Selected {
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
pub(crate) async fn figures(servers: &Servers, selected: &Selected) -> Result<Vec<Figure>> {
    let messages = selected.options.size(selected.messages, selected.messages / 10);
    let messages = (messages / AGGREGATES * AGGREGATES).max(AGGREGATES);
    eprintln!("prove: recording, publishing and handling {messages} messages");
    let many = World::make(servers, messages).await?;
    let few = World::make(servers, AGGREGATES).await?;
    let mut series = Series::default();
    for _ in selected.options.runs("prove") {
        let (_, base) = few.prove(&selected.program).await?;
        let (elapsed, peak) = many.prove(&selected.program).await?;
        series.add("prove_seconds", elapsed.as_secs_f64());
        series.add("prove_rate", per_second(many.messages, elapsed));
        series.add("prove_memory", peak);
        series.add("prove_memory_few", base);
        series.add("prove_memory_added", peak - base);
    }
    many.remove().await?;
    few.remove().await?;
    Ok(vec![
        series.alone("prove_seconds", "s"),
        series.alone("prove_rate", "messages/s"),
        series.alone("prove_memory", "MiB"),
        series.alone("prove_memory_few", "MiB"),
        series.alone("prove_memory_added", "MiB").at_most(MEMORY_MAX),
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
        let relay = relay::start(&outbox, &stream, Some(messages))?;
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
        let folder = tempfile::tempdir()?;
        let (file, stream) = (folder.path().join("outbox.toml"), &self.stream.name);
        let config = format!(
            "[[outbox]]\nname = \"bench\"\nschema = \"{}\"\n\
             [outbox.stream]\nname = \"{stream}\"\nprefix = \"{}\"\nprovision = false\n",
            self.outbox.name,
            self.stream.prefix()
        );
        std::fs::write(&file, config)?;
        let begun = Instant::now();
        let child = Command::new(program)
            .args([
                "prove", "--since", "1d", "--until", "0s", "-o", "json", "--config",
            ])
            .arg(&file)
            .env("DATABASE_URL", &self.outbox.url)
            .env("NATS_URL", &self.stream.nats_url)
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let id = child.id().ok_or("the program has ended already")?;
        let output = child.wait_with_output();
        tokio::pin!(output);
        let mut peak = 0;
        let output = loop {
            tokio::select! {
                output = &mut output => break output?,
                () = sleep(READ_EVERY) => peak = peak.max(peak_bytes(id)?.unwrap_or_default()),
            }
        };
        let elapsed = begun.elapsed();
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!("the ledger does not balance ({}): {text}", output.status).into());
        }
        let proof: serde_json::Value = serde_json::from_str(&text)?;
        let found = |count: &serde_json::Value| count.as_u64().unwrap_or_default();
        check("committed", found(&proof["outbox"]["committed"]), self.messages)?;
        check("on the stream", found(&proof["stream"]["events"]), self.messages)?;
        let books = &proof["consumers"][0];
        check("handled", found(&books["handled"]), self.messages)?;
        Ok((elapsed, peak as f64 / MEBIBYTE))
    }

    async fn remove(self) -> Result<()> {
        self.stream.remove(self.messages).await?;
        self.outbox.remove().await
    }
}
