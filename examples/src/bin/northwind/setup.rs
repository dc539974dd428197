//! The programs of a run, and the setup that each of them needs: the addresses of the databases and the stream, and the paths of the files.
//!
//! The orchestrator writes the setup into the work folder and passes its path to the programs. Addresses can contain passwords, and command lines are
//! visible to everybody on the machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use outbox_log::PostgresLog;
use sea_orm::DatabaseConnection;
use serde::{Deserialize, Serialize};

use crate::failure::{Doing, Failure};
use crate::order::Order;

/// A database server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum DatabaseKind {
    Sqlite,
    Postgres,
    Mariadb,
}

/// What a relay reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum RelayKind {
    /// The outbox's table.
    Polling,
    /// PostgreSQL's transaction log.
    Log,
}

/// A part of the shop with a database of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Part {
    Service,
    Inventory,
    Billing,
    Shipping,
    Notifications,
}

impl Part {
    /// All parts.
    pub(crate) const ALL: [Self; 5] = [
        Self::Service,
        Self::Inventory,
        Self::Billing,
        Self::Shipping,
        Self::Notifications,
    ];

    /// The parts that are consumers.
    pub(crate) const CONSUMERS: [Self; 4] = [
        Self::Inventory,
        Self::Billing,
        Self::Shipping,
        Self::Notifications,
    ];

    /// The parts that record messages, and so have an outbox.
    pub(crate) const OUTBOXES: [Self; 2] = [Self::Service, Self::Shipping];

    /// Its name in databases, on the broker and in files. The name never changes.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Inventory => "inventory",
            Self::Billing => "billing",
            Self::Shipping => "shipping",
            Self::Notifications => "notifications",
        }
    }
}

/// The job of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Service,
    Relay(Part),
    Consumer(Part),
}

impl Role {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let consumers = Part::CONSUMERS.into_iter().map(Self::Consumer);
        // The service comes last, so that the other programs run when its first message is recorded.
        consumers
            .chain(Part::OUTBOXES.into_iter().map(Self::Relay))
            .chain([Self::Service])
    }

    /// Its arguments on the command line.
    pub(crate) fn arguments(self) -> Vec<&'static str> {
        match self {
            Self::Service => vec!["service"],
            Self::Relay(part) => vec!["relay", "--outbox", part.name()],
            Self::Consumer(part) => vec!["consumer", part.name()],
        }
    }

    /// Its name, in messages and as the name of its log.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Service => "service".to_owned(),
            Self::Relay(part) => format!("relay-{}", part.name()),
            Self::Consumer(part) => format!("consumer-{}", part.name()),
        }
    }
}

/// The stream of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Stream {
    /// The broker's address; `None` for the broker in memory.
    pub(crate) nats_url: Option<String>,
    /// Name of the stream.
    pub(crate) name: String,
    /// First token of its subjects.
    pub(crate) prefix: String,
}

/// The setup of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) database: DatabaseKind,
    /// Address of each part's database.
    pub(crate) urls: BTreeMap<Part, String>,
    pub(crate) relay: RelayKind,
    pub(crate) stream: Stream,
    pub(crate) work_dir: PathBuf,
}

impl Setup {
    /// Reads what [`Self::write`] wrote.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read(path).or_cannot(format_args!("read {}", path.display()))?;
        serde_json::from_slice(&text).or_cannot(format_args!("read {}", path.display()))
    }

    /// Writes the setup into the work folder and returns its path.
    pub(crate) fn write(&self) -> Result<PathBuf, Failure> {
        let path = self.work_dir.join(SETUP_FILE);
        let text = serde_json::to_vec_pretty(self).or_cannot("encode the setup")?;
        write_private(&path, &text).or_cannot(format_args!("write {}", path.display()))?;
        Ok(path)
    }

    /// Address of a part's database.
    pub(crate) fn url(&self, part: Part) -> &str {
        &self.urls[&part]
    }

    /// Whether a log relay publishes the messages of this part.
    pub(crate) fn has_log(&self, part: Part) -> bool {
        self.relay == RelayKind::Log && Part::OUTBOXES.contains(&part)
    }

    /// The log of a part's outbox. Its name has the run's id, because all databases of a server share the names of slots.
    pub(crate) fn log(&self, part: Part, url: &str, db: DatabaseConnection) -> Result<PostgresLog, Failure> {
        let name = format!("{}_{}", self.stream.prefix, part.name());
        PostgresLog::new(db, url)
            .and_then(|log| log.named(&name))
            .or_cannot(format_args!("read the log of {}", part.name()))
    }

    /// The file of notices.
    pub(crate) fn notices(&self) -> PathBuf {
        self.work_dir.join("notices.txt")
    }

    /// The checked orders, for the service.
    pub(crate) fn orders(&self) -> PathBuf {
        self.work_dir.join("orders.json")
    }

    /// The folder of the programs' logs.
    pub(crate) fn logs(&self) -> PathBuf {
        logs(&self.work_dir)
    }

    /// Writes the orders to a file for the service, which may be another process.
    pub(crate) fn write_orders(&self, orders: &[Order]) -> Result<(), Failure> {
        let path = self.orders();
        let text = serde_json::to_vec(orders).or_cannot("encode the orders")?;
        fs::write(&path, text).or_cannot(format_args!("write {}", path.display()))
    }

    /// Reads the orders that [`Self::write_orders`] wrote.
    pub(crate) fn read_orders(&self) -> Result<Vec<Order>, Failure> {
        let path = self.orders();
        let text = fs::read(&path).or_cannot(format_args!("read {}", path.display()))?;
        serde_json::from_slice(&text).or_cannot(format_args!("read {}", path.display()))
    }
}

const SETUP_FILE: &str = "setup.json";

/// The folder of the logs of a run in this folder.
pub(crate) fn logs(work_dir: &Path) -> PathBuf {
    work_dir.join("logs")
}

/// Creates the work folder of a run. A folder that holds a run already is refused, because its notices and messages would count as ghosts.
pub(crate) fn prepare_work_dir(work_dir: &Path) -> Result<PathBuf, Failure> {
    fs::create_dir_all(logs(work_dir)).or_cannot(format_args!("make the folder {}", work_dir.display()))?;
    let work_dir = work_dir
        .canonicalize()
        .or_cannot(format_args!("find the folder {}", work_dir.display()))?;
    if work_dir.join(SETUP_FILE).exists() {
        let folder = work_dir.display();
        return Err(Failure::Wrong(format!(
            "{folder} holds an earlier run; pass an empty folder as --work-dir"
        )));
    }
    Ok(work_dir)
}

#[cfg(unix)]
fn write_private(path: &Path, text: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?
        .write_all(text)
}

#[cfg(not(unix))]
fn write_private(path: &Path, text: &[u8]) -> std::io::Result<()> {
    fs::write(path, text)
}
