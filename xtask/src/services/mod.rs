//! Finds, installs, starts and stops private servers, programs and modules for tests.
//!
//! Invariant: when `Services` is dropped or the task ends, each server has stopped and its data is
//! removed. A missing back end is no error here: the caller skips or fails. An installed back end
//! that does not start is an error, never a reason to skip a test.

mod folder;
pub(crate) mod install;
mod mariadb;
mod nats;
mod postgres;
mod programs;
mod server;

use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use anyhow::{Context as _, Result};

use crate::services::folder::Folder;
use crate::services::programs::version_of;
use crate::services::server::Server;
use crate::workspace::{self, Workspace};

pub(crate) use crate::services::programs::find;
pub(crate) use crate::services::server::free_port;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Backend {
    Postgres,
    PostgresLogical,
    /// The program `postgres`, for tests that start and kill their own server.
    PostgresProgram,
    MariaDb,
    MariaDbProgram,
    Nats,
    NatsProgram,
    NatsOld,
    NatsOldProgram,
    Redis,
    Promtool,
    PgBouncer,
    Localedef,
    SystemdAnalyze,
    /// `strace`, which records system calls for the systemd unit.
    Strace,
    PythonModules,
    Node,
    NodeModules,
    /// A nats-server of any version, for the demo.
    NatsForDemo,
}

const BACKENDS: [(Backend, &str); 19] = [
    (Backend::Postgres, "OUTBOX_TEST_POSTGRES_URL"),
    (Backend::PostgresLogical, "OUTBOX_TEST_POSTGRES_LOGICAL_URL"),
    (Backend::PostgresProgram, "OUTBOX_TEST_POSTGRES_BIN"),
    (Backend::MariaDb, "OUTBOX_TEST_MARIADB_URL"),
    (Backend::MariaDbProgram, "OUTBOX_TEST_MARIADB_BIN"),
    (Backend::Nats, "OUTBOX_TEST_NATS_URL"),
    (Backend::NatsProgram, "OUTBOX_TEST_NATS_CLUSTER_BIN"),
    (Backend::NatsOld, "OUTBOX_TEST_NATS_OLD_URL"),
    (Backend::NatsOldProgram, "OUTBOX_TEST_NATS_OLD_BIN"),
    (Backend::Redis, "OUTBOX_TEST_REDIS_URL"),
    (Backend::Promtool, "OUTBOX_TEST_PROMTOOL_BIN"),
    (Backend::PgBouncer, "OUTBOX_TEST_PGBOUNCER_BIN"),
    (Backend::Localedef, "OUTBOX_TEST_LOCALEDEF_BIN"),
    (Backend::SystemdAnalyze, "OUTBOX_TEST_SYSTEMD_ANALYZE_BIN"),
    (Backend::Strace, "OUTBOX_TEST_STRACE_BIN"),
    (Backend::PythonModules, "OUTBOX_TEST_PYTHON_MODULES"),
    (Backend::Node, "OUTBOX_TEST_NODE_BIN"),
    (Backend::NodeModules, "OUTBOX_TEST_NODE_MODULES"),
    (Backend::NatsForDemo, "NATS_URL"),
];

pub(crate) const OF_GUIDE: [Backend; 2] = [Backend::Postgres, Backend::NatsForDemo];

pub(crate) fn for_tests() -> Vec<Backend> {
    let all = BACKENDS.iter().map(|(backend, _)| *backend);
    all.filter(|backend| *backend != Backend::NatsForDemo).collect()
}

impl Backend {
    pub(crate) fn variable(self) -> &'static str {
        let found = BACKENDS.iter().find(|(backend, _)| *backend == self);
        found.map_or("", |(_, variable)| variable)
    }

    pub(crate) fn printed_variable(self, is_for_tests: bool) -> &'static str {
        match self {
            Self::Postgres if !is_for_tests => "DATABASE_URL",
            backend => backend.variable(),
        }
    }

    pub(crate) fn find(self, tools: &Path) -> Result<PathBuf> {
        match self {
            Self::Postgres | Self::PostgresLogical | Self::PostgresProgram => postgres::program(),
            Self::MariaDb | Self::MariaDbProgram => mariadb::program(),
            Self::Nats | Self::NatsProgram => nats::current(tools),
            Self::NatsOld | Self::NatsOldProgram => nats::old(),
            Self::NatsForDemo => nats::any(tools),
            Self::Redis => install::program("redis-server", "redis-server"),
            Self::Promtool => install::program("promtool", "prometheus"),
            Self::PgBouncer => install::program("pgbouncer", "pgbouncer"),
            Self::Localedef => {
                install::debian_package("locales", || Path::new("/usr/share/i18n/locales/de_DE").exists())?;
                install::program("localedef", "libc-bin")
            }
            Self::SystemdAnalyze => install::program("systemd-analyze", "systemd"),
            Self::Strace => install::program("strace", "strace"),
            Self::PythonModules => {
                let file = workspace::root().join("examples/polyglot/python/requirements.txt");
                let requirements = fs::read_to_string(file).context("cannot read requirements.txt")?;
                install::python_modules(tools, "polyglot-python", &requirements, true)
            }
            Self::Node => install::node_and_npm(tools).map(|(node, _)| node),
            Self::NodeModules => {
                let package = workspace::root().join("examples/polyglot/node");
                install::node_modules(tools, "polyglot-node", &package)
            }
        }
    }

    fn launch(self, program: &Path, folder: &Folder) -> Result<Option<Server>> {
        let logical = [
            "wal_level=logical",
            "max_replication_slots=100",
            "max_wal_senders=100",
        ];
        let server = match self {
            Self::Postgres => postgres::launch(program, folder, "postgres", &[]),
            Self::PostgresLogical => postgres::launch(program, folder, "postgres_logical", &logical),
            Self::MariaDb => mariadb::launch(program, folder),
            Self::Nats | Self::NatsForDemo => nats::launch(program, folder, "nats"),
            Self::NatsOld => nats::launch(program, folder, "nats-old"),
            Self::Redis => nats::launch_redis(program, folder),
            _ => return Ok(None),
        };
        server.map(Some)
    }
}

#[derive(Debug)]
struct Found {
    backend: Backend,
    url: Option<String>,
    note: String,
    is_broken: bool,
    server: Option<Server>,
}

#[derive(Debug)]
pub(crate) struct Services {
    found: Vec<Found>,
    // The folder is declared after the servers, so that it is removed after they have stopped.
    folder: Folder,
}

impl Services {
    pub(crate) fn start(wanted: &[Backend], workspace: &Workspace) -> Result<Self> {
        let (folder, tools) = (Folder::create()?, workspace.tools());
        let found = thread::scope(|scope| {
            let start = |&backend| {
                let (folder, tools) = (&folder, &tools);
                scope.spawn(move || provide(backend, folder, tools))
            };
            let threads: Vec<_> = wanted.iter().map(start).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no start panics");
            threads.into_iter().map(join).collect()
        });
        Ok(Self { found, folder })
    }

    pub(crate) fn report(&self) {
        for found in &self.found {
            let (backend, note) = (found.backend, &found.note);
            let verdict = if found.url.is_some() {
                ""
            } else {
                "not available: "
            };
            eprintln!("{backend:?}: {verdict}{note}");
        }
    }

    pub(crate) fn url(&self, wanted: Backend) -> Result<&str> {
        let found = self.found.iter().find(|found| found.backend == wanted);
        let found = found.with_context(|| format!("{wanted:?} was not requested"))?;
        let url = found.url.as_deref();
        url.with_context(|| format!("{wanted:?} is not available: {}", found.note))
    }

    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let found = self.found.iter();
        found.filter_map(|found| Some((found.backend.variable(), found.url.as_deref()?)))
    }

    pub(crate) fn unavailable(&self) -> (Vec<String>, Vec<String>) {
        let unavailable = self.found.iter().filter(|found| found.url.is_none());
        let (broken, missing): (Vec<_>, Vec<_>) = unavailable.partition(|found| found.is_broken);
        let line = |found: &Found| format!("{:?}: {}", found.backend, found.note);
        let lines = |found: Vec<&Found>| found.into_iter().map(line).collect();
        (lines(missing), lines(broken))
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        let servers = self.found.iter().filter_map(|found| found.server.as_ref());
        servers.for_each(|server| server.process.ask_to_stop());
    }
}

fn provide(backend: Backend, folder: &Folder, tools: &Path) -> Found {
    let new = |url: Option<String>, note: String| Found {
        backend,
        url,
        note,
        is_broken: false,
        server: None,
    };
    let variable = backend.variable();
    if let Some(url) = env::var(variable).ok().filter(|url| !url.is_empty()) {
        return new(Some(url), format!("given by {variable}"));
    }
    let program = match backend.find(tools) {
        Ok(program) => program,
        Err(why) => return new(None, format!("{why:#}")),
    };
    match backend.launch(&program, folder) {
        Ok(server) => {
            let path = program.display().to_string();
            let url = server.as_ref().map_or(&path, |server| &server.url).clone();
            let note = version_of(&program).unwrap_or(path);
            let found = new(Some(url), note);
            Found { server, ..found }
        }
        Err(why) => Found {
            is_broken: true,
            ..new(None, format!("{why:#}"))
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(folder: &Path) -> String {
        let mut all = String::new();
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                all += &sources(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                all += &fs::read_to_string(path).expect("a source");
            }
        }
        all
    }

    #[test]
    fn printed_variables_match_variables_that_programs_read() {
        let root = workspace::root();
        let program = sources(&root.join("outbox-cli/src/config"));
        for backend in OF_GUIDE {
            let variable = format!("\"{}\"", backend.printed_variable(false));
            assert!(program.contains(&variable), "{variable}");
        }
        let crates = fs::read_dir(&root).expect("a folder").flatten();
        let crates = crates
            .map(|entry| entry.path())
            .filter(|folder| !folder.ends_with("xtask"));
        let folders = crates.flat_map(|folder| ["src", "tests"].map(|name| folder.join(name)));
        let tests: String = folders
            .filter(|folder| folder.is_dir())
            .map(|folder| sources(&folder))
            .collect();
        for backend in for_tests() {
            let variable = format!("\"{}\"", backend.printed_variable(true));
            assert!(tests.contains(&variable), "{variable}");
        }
    }
}
