//! The program `outbox` as users run it, over an outbox and a stream of a measurement.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::Result;
use crate::child::peak_bytes;
use crate::servers::{Schema, Stream};

/// The interval between two looks at the memory of a process that ends by itself.
const LOOK: Duration = Duration::from_millis(2);

/// The program, and the folder of its configuration.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    folder: TempDir,
    database_url: String,
    nats_url: String,
}

/// What a command has printed and taken.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) output: Output,
    pub(crate) elapsed: Duration,
    /// The largest resident memory of the process.
    pub(crate) peak_bytes: u64,
}

impl Program {
    /// Default settings, except that tables and stream are there.
    pub(crate) fn over(path: &Path, outbox: &Schema, stream: &Stream) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = format!(
            "[http]\naddress = \"127.0.0.1:0\"\n[[outbox]]\nname = \"bench\"\nschema = \"{}\"\n\
             [outbox.stream]\nname = \"{}\"\nprefix = \"{}\"\nprovision = false\n",
            outbox.name,
            stream.name,
            stream.prefix()
        );
        std::fs::write(folder.path().join("outbox.toml"), config)?;
        Ok(Self {
            path: path.to_owned(),
            folder,
            database_url: outbox.url.clone(),
            nats_url: stream.nats_url.clone(),
        })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(words).arg("--config");
        command.arg(self.folder.path().join("outbox.toml"));
        command.env("DATABASE_URL", &self.database_url);
        command.env("NATS_URL", &self.nats_url);
        command.env("RUST_LOG", "warn");
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Starts a command that runs until it is stopped.
    pub(crate) fn start(&self, words: &[&str]) -> Result<Child> {
        Ok(self.command(words).stdout(Stdio::null()).spawn()?)
    }

    /// Runs a command to its end. Of a process that has ended nobody knows the memory, so it is looked at all the time.
    pub(crate) async fn run(&self, words: &[&str]) -> Result<Ended> {
        let begun = Instant::now();
        let child = self.command(words).stdout(Stdio::piped()).spawn()?;
        let id = child.id().ok_or("the process has ended before it began")?;
        let output = child.wait_with_output();
        tokio::pin!(output);
        let mut peak = 0;
        loop {
            tokio::select! {
                output = &mut output => {
                    return Ok(Ended { output: output?, elapsed: begun.elapsed(), peak_bytes: peak });
                }
                () = sleep(LOOK) => peak = peak.max(peak_bytes(id)?.unwrap_or_default()),
            }
        }
    }
}
