//! The programs of a run, and their setup.
//!
//! The orchestrator passes the setup in a file: addresses can contain passwords, and command lines
//! are visible to all users of the machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use outbox_log::PostgresLog;
use sea_orm::DatabaseConnection;
use serde::{Deserialize, Serialize};

use crate::input::Source;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum RelayKind {
    /// The outbox table.
    Polling,
    /// PostgreSQL's WAL.
    Log,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Part {
    Service,
    Inventory,
    Billing,
    Shipping,
    Notifications,
}

use Part::{Billing, Inventory, Notifications, Service, Shipping};

impl Part {
    pub(crate) const ALL: [Self; 5] = [Service, Inventory, Billing, Shipping, Notifications];

    pub(crate) const CONSUMERS: [Self; 4] = [Inventory, Billing, Shipping, Notifications];

    pub(crate) const OUTBOXES: [Self; 2] = [Service, Shipping];

    /// The name of the part in databases, on the broker and in files. The name is stable.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Service => "service",
            Inventory => "inventory",
            Billing => "billing",
            Shipping => "shipping",
            Notifications => "notifications",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Service,
    Relay(Part),
    Consumer(Part),
}

impl Role {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let consumers = Part::CONSUMERS.into_iter().map(Self::Consumer);
        // The service comes last, so that the other programs are running for its first message.
        consumers
            .chain(Part::OUTBOXES.into_iter().map(Self::Relay))
            .chain([Self::Service])
    }

    /// The name of the program on the command line, in messages and of its log file.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Service => "service".to_owned(),
            Self::Relay(part) => format!("relay-{}", part.name()),
            Self::Consumer(part) => format!("consumer-{}", part.name()),
        }
    }
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::all()
            .find(|role| role.name() == name)
            .ok_or("no such program")
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) urls: BTreeMap<Part, String>,
    pub(crate) relay: RelayKind,
    pub(crate) nats_url: Option<String>,
    /// Name of the stream, and first token of its subjects.
    pub(crate) stream: String,
    pub(crate) work_dir: PathBuf,
    pub(crate) source: Source,
}

impl Setup {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }

    pub(crate) fn write(&self) -> Result<PathBuf> {
        let path = self.work_dir.join(SETUP_FILE);
        let file = tempfile::NamedTempFile::new_in(&self.work_dir)?;
        serde_json::to_writer_pretty(&file, self)?;
        file.persist(&path).context("cannot write the setup")?;
        Ok(path)
    }

    pub(crate) fn has_log(&self, part: Part) -> bool {
        self.relay == RelayKind::Log && Part::OUTBOXES.contains(&part)
    }

    /// The replication log of a part of the demo. The slot name contains the run's id, because all
    /// databases of a server share slot names.
    pub(crate) fn log(&self, part: Part, db: DatabaseConnection) -> Result<PostgresLog> {
        let name = format!("{}_{}", self.stream, part.name());
        PostgresLog::new(db, &self.urls[&part])
            .and_then(|log| log.named(&name))
            .with_context(|| format!("cannot read the log of {}", part.name()))
    }

    pub(crate) fn notices(&self) -> PathBuf {
        self.work_dir.join("notices.txt")
    }

    pub(crate) fn log_file(&self, program: &str) -> PathBuf {
        self.work_dir.join("logs").join(format!("{program}.log"))
    }
}

const SETUP_FILE: &str = "setup.json";

/// Creates the work folder. A folder of an earlier run is rejected, because the ledger would count
/// its messages as ghosts (messages without an outbox row).
pub(crate) fn prepare_work_dir(work_dir: &Path) -> Result<PathBuf> {
    let shown = work_dir.display();
    std::fs::create_dir_all(work_dir.join("logs"))
        .with_context(|| format!("cannot create the folder {shown}"))?;
    if work_dir.join(SETUP_FILE).exists() {
        bail!("{shown} holds an earlier run; pass an empty folder as --work-dir");
    }
    Ok(work_dir.canonicalize()?)
}
