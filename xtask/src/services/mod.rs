//! Private instances of the databases and brokers that the tests need: finds, installs, starts and stops them, on free ports. And programs and modules
//! that tests run themselves.
//!
//! Invariant: every server that `Services` started has stopped, and its data is gone, when the value is dropped or the task ends
//! in any other way. An instance given by an environment variable is used as it is and never touched otherwise.
//!
//! A missing back end is no error here; the caller decides whether that is a skip or a failure. One that is installed and does not start is told apart,
//! because that is never a reason to skip anything.

mod again;
mod axe;
mod browser;
mod debezium;
mod folder;
mod install;
mod java;
mod mariadb;
mod musl;
mod nats;
mod pgbouncer;
mod polyglot;
mod postgres;
mod postgres18;
mod programs;
mod prometheus;
mod quiet;
mod redis;
mod server;
mod systemd;

use std::path::{Path, PathBuf};
use std::{env, thread};

use anyhow::{Context as _, Result, anyhow};

use crate::services::folder::Folder;
use crate::services::programs::label;
use crate::services::server::Server;
use crate::workspace::{self, Workspace};

pub(crate) use crate::services::debezium::Debezium;
pub(crate) use crate::services::musl::tools as musl_tools;
pub(crate) use crate::services::polyglot::Stack;
pub(crate) use crate::services::postgres::psql;
pub(crate) use crate::services::postgres18::programs as postgres18_programs;

/// What tests or the demo need: a server, with a URL that they connect to, or a program or a folder, with its path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Backend {
    Postgres,
    /// One whose log can be read: for log relays, and for `cargo xtask debezium`.
    PostgresLogical,
    /// One with TLS, for `cargo xtask image`.
    PostgresTls,
    /// The program of that server, with `initdb` beside it, for tests that start and kill a server of their own.
    PostgresProgram,
    MariaDb,
    /// The program of that server, for the same.
    MariaDbProgram,
    /// The nats-server version the tests are written against.
    Nats,
    /// The same with TLS, for `cargo xtask image`.
    NatsTls,
    /// The program of that version, for tests that start a cluster of their own.
    NatsProgram,
    /// The oldest nats-server version supported.
    NatsOld,
    /// The program of that version, for tests that start, stop or configure a server of their own.
    NatsOldProgram,
    Redis,
    /// The program that checks and tests the alerts.
    Promtool,
    /// The program that drives a browser, for the dashboard.
    Chromedriver,
    /// The pooler before PostgreSQL, for tests that start one of their own.
    PgBouncer,
    /// systemd's program that judges units, for the unit of the relay.
    SystemdAnalyze,
    /// The program that notes system calls, for the same.
    Strace,
    /// The script that looks for what keeps people from using a page, for the dashboard.
    Axe,
    /// The modules of the programs in `examples/polyglot/python`.
    PythonModules,
    /// The program that runs the service in `examples/polyglot/node`.
    Node,
    /// The modules of that service.
    NodeModules,
    /// Any nats-server at all, for the demo.
    NatsForDemo,
}

/// The servers that the guide needs, each with the variable by which a program finds it.
pub(crate) const FOR_GUIDE: [(Backend, &str); 2] = [
    (Backend::Postgres, "DATABASE_URL"),
    (Backend::NatsForDemo, "NATS_URL"),
];

/// The back ends of the tests.
pub(crate) const FOR_TESTS: [Backend; 19] = [
    Backend::Postgres,
    Backend::PostgresLogical,
    Backend::PostgresProgram,
    Backend::MariaDb,
    Backend::MariaDbProgram,
    Backend::Nats,
    Backend::NatsProgram,
    Backend::NatsOld,
    Backend::NatsOldProgram,
    Backend::Redis,
    Backend::Promtool,
    Backend::Chromedriver,
    Backend::PgBouncer,
    Backend::SystemdAnalyze,
    Backend::Strace,
    Backend::Axe,
    Backend::PythonModules,
    Backend::Node,
    Backend::NodeModules,
];

impl Backend {
    /// The environment variable that names a running instance, a program or a folder of modules, for us and for the tests.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "OUTBOX_TEST_POSTGRES_URL",
            Self::PostgresLogical => "OUTBOX_TEST_POSTGRES_LOGICAL_URL",
            Self::PostgresTls => "OUTBOX_TEST_POSTGRES_TLS_URL",
            Self::NatsTls => "OUTBOX_TEST_NATS_TLS_URL",
            Self::PostgresProgram => "OUTBOX_TEST_POSTGRES_BIN",
            Self::MariaDb => "OUTBOX_TEST_MARIADB_URL",
            Self::MariaDbProgram => "OUTBOX_TEST_MARIADB_BIN",
            Self::Nats => "OUTBOX_TEST_NATS_URL",
            Self::NatsProgram => "OUTBOX_TEST_NATS_CLUSTER_BIN",
            Self::NatsOld => "OUTBOX_TEST_NATS_OLD_URL",
            Self::NatsOldProgram => "OUTBOX_TEST_NATS_OLD_BIN",
            Self::Redis => "OUTBOX_TEST_REDIS_URL",
            Self::Promtool => "OUTBOX_TEST_PROMTOOL_BIN",
            Self::Chromedriver => "OUTBOX_TEST_CHROMEDRIVER_BIN",
            Self::PgBouncer => "OUTBOX_TEST_PGBOUNCER_BIN",
            Self::SystemdAnalyze => "OUTBOX_TEST_SYSTEMD_ANALYZE_BIN",
            Self::Strace => "OUTBOX_TEST_STRACE_BIN",
            Self::Axe => "OUTBOX_TEST_AXE_SCRIPT",
            Self::PythonModules => "OUTBOX_TEST_PYTHON_MODULES",
            Self::Node => "OUTBOX_TEST_NODE_BIN",
            Self::NodeModules => "OUTBOX_TEST_NODE_MODULES",
            Self::NatsForDemo => "NATS_URL",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::PostgresLogical => "PostgreSQL with wal_level=logical",
            Self::PostgresTls => "PostgreSQL with TLS",
            Self::NatsTls => "nats-server with TLS",
            Self::PostgresProgram => "PostgreSQL for private servers",
            Self::MariaDb => "MariaDB",
            Self::MariaDbProgram => "MariaDB for private servers",
            Self::Nats | Self::NatsForDemo => "nats-server",
            Self::NatsProgram => "nats-server for clusters",
            Self::NatsOld => "nats-server 2.9",
            Self::NatsOldProgram => "old nats-server for private servers",
            Self::Redis => "Redis",
            Self::Promtool => "promtool",
            Self::Chromedriver => "chromedriver",
            Self::PgBouncer => "PgBouncer",
            Self::SystemdAnalyze => "systemd-analyze",
            Self::Strace => "strace",
            Self::Axe => "axe-core",
            Self::PythonModules => "modules for Python",
            Self::Node => "Node",
            Self::NodeModules => "modules for Node",
        }
    }

    /// Finds its program, or installs it. An error says why this machine has none.
    fn install(self, tools: &Path) -> Result<()> {
        match self {
            Self::Postgres | Self::PostgresLogical | Self::PostgresTls | Self::PostgresProgram => {
                postgres::programs().map(drop)
            }
            Self::MariaDb | Self::MariaDbProgram => mariadb::programs().map(drop),
            Self::Nats | Self::NatsTls | Self::NatsProgram => nats::program(tools).map(drop),
            Self::NatsOld | Self::NatsOldProgram => nats::old_program().map(drop),
            Self::Redis => redis::program().map(drop),
            Self::Promtool => prometheus::program().map(drop),
            Self::Chromedriver => browser::driver().map(drop),
            Self::PgBouncer => pgbouncer::program().map(drop),
            Self::SystemdAnalyze => systemd::analyze().map(drop),
            Self::Strace => systemd::strace().map(drop),
            Self::Axe => axe::script(tools).map(drop),
            Self::PythonModules => polyglot::python_modules(tools).map(drop),
            Self::Node => polyglot::node(tools).map(drop),
            Self::NodeModules => polyglot::node_modules(tools).map(drop),
            Self::NatsForDemo => nats::any(tools).map(drop),
        }
    }

    fn launch(self, folder: &Folder, tools: &Path) -> Result<Found> {
        match self {
            Self::Postgres => postgres::launch(folder, "postgres", &[]),
            Self::PostgresLogical => postgres::launch(
                folder,
                "postgres_logical",
                &[
                    "wal_level=logical",
                    "max_replication_slots=100",
                    "max_wal_senders=100",
                ],
            ),
            Self::PostgresTls => postgres::launch_with_tls(folder, &certificates()),
            Self::PostgresProgram => {
                return postgres::programs().map(|folder| Found::Path(folder.join("postgres")));
            }
            Self::MariaDb => mariadb::launch(folder),
            Self::MariaDbProgram => return mariadb::programs().map(|found| Found::Path(found.server)),
            Self::Nats => nats::current(folder, tools),
            Self::NatsTls => nats::current_with_tls(folder, tools, &certificates()),
            Self::NatsProgram => return nats::program(tools).map(Found::Path),
            Self::NatsOld => nats::old(folder),
            Self::NatsOldProgram => return nats::old_program().map(Found::Path),
            Self::Redis => redis::launch(folder),
            Self::Promtool => return prometheus::program().map(Found::Path),
            Self::Chromedriver => return browser::driver().map(Found::Path),
            Self::PgBouncer => return pgbouncer::program().map(Found::Path),
            Self::SystemdAnalyze => return systemd::analyze().map(Found::Path),
            Self::Strace => return systemd::strace().map(Found::Path),
            Self::Axe => return axe::script(tools).map(Found::Path),
            Self::PythonModules => return polyglot::python_modules(tools).map(Found::Path),
            Self::Node => return polyglot::node(tools).map(Found::Path),
            Self::NodeModules => return polyglot::node_modules(tools).map(Found::Path),
            Self::NatsForDemo => nats::for_demo(folder, tools),
        }
        .map(Found::Server)
    }
}

/// The folder with the certificates of servers with TLS, whose name is `localhost`.
pub(crate) fn certificates() -> PathBuf {
    workspace::root().join("outbox-nats/tests/tls")
}

/// A back end that is available.
enum Found {
    Server(Server),
    /// A program that tests run themselves, or the folder of its modules.
    Path(PathBuf),
}

/// Whether a back end can be used, and why not.
#[derive(Clone, Debug)]
pub(crate) enum Availability {
    Ready {
        /// Of a program or a folder: its path.
        url: String,
        /// Where it comes from, for people.
        origin: String,
    },
    /// It is not installed, and cannot be.
    Missing { reason: String },
    /// It is installed and does not start.
    Broken { reason: String },
}

/// The wanted back ends; dropping it stops those that were started here.
#[derive(Debug)]
pub(crate) struct Services {
    backends: Vec<(Backend, Availability)>,
    servers: Vec<Server>,
    // Declared after the servers, so that it is removed when they no longer write to it.
    folder: Folder,
}

impl Services {
    /// Makes every wanted back end available that can be, side by side, since each takes seconds.
    pub(crate) fn start(wanted: &[Backend], workspace: &Workspace) -> Result<Self> {
        let folder = Folder::create()?;
        let tools = workspace.tools();
        let started = thread::scope(|scope| {
            let start = |&backend: &Backend| {
                let (folder, tools) = (&folder, &tools);
                (
                    backend,
                    scope.spawn(move || make_available(backend, folder, tools)),
                )
            };
            let threads: Vec<_> = wanted.iter().map(start).collect();
            let join = |(backend, thread): (Backend, thread::ScopedJoinHandle<'_, _>)| {
                let crashed = |_| {
                    (
                        Availability::Broken {
                            reason: "its start panicked; see above".to_owned(),
                        },
                        None,
                    )
                };
                (backend, thread.join().unwrap_or_else(crashed))
            };
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        let mut services = Self {
            backends: Vec::new(),
            servers: Vec::new(),
            folder,
        };
        for (backend, (availability, server)) in started {
            services.backends.push((backend, availability));
            services.servers.extend(server);
        }
        Ok(services)
    }

    pub(crate) fn backends(&self) -> &[(Backend, Availability)] {
        &self.backends
    }

    /// Prints where the back ends come from.
    pub(crate) fn report(&self) {
        for (backend, availability) in &self.backends {
            match availability {
                Availability::Ready { origin, .. } => eprintln!("{}: {origin}", backend.name()),
                Availability::Missing { reason } | Availability::Broken { reason } => {
                    eprintln!("{}: not available: {reason}", backend.name());
                }
            }
        }
    }

    /// The URL of a wanted back end, or an error saying why there is none.
    pub(crate) fn url(&self, wanted: Backend) -> Result<&str> {
        let found = self.backends.iter().find(|(backend, _)| *backend == wanted);
        match found.map(|(_, availability)| availability) {
            Some(Availability::Ready { url, .. }) => Ok(url),
            Some(Availability::Missing { reason } | Availability::Broken { reason }) => {
                Err(anyhow!("{} is not available: {reason}", wanted.name()))
            }
            None => Err(anyhow!("{} was not asked for", wanted.name())),
        }
    }

    /// Variables and URLs of everything that is available.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.backends
            .iter()
            .filter_map(|(backend, availability)| match availability {
                Availability::Ready { url, .. } => Some((backend.variable(), url.as_str())),
                Availability::Missing { .. } | Availability::Broken { .. } => None,
            })
    }

    /// The back ends that are not installed, and why.
    pub(crate) fn missing(&self) -> Vec<String> {
        let reason = |(backend, availability): &(Backend, Availability)| match availability {
            Availability::Missing { reason } => Some(format!("{}: {reason}", backend.name())),
            Availability::Ready { .. } | Availability::Broken { .. } => None,
        };
        self.backends.iter().filter_map(reason).collect()
    }

    /// The back ends that are installed and do not start, and why.
    pub(crate) fn broken(&self) -> Vec<String> {
        let reason = |(backend, availability): &(Backend, Availability)| match availability {
            Availability::Broken { reason } => Some(format!("{}: {reason}", backend.name())),
            Availability::Ready { .. } | Availability::Missing { .. } => None,
        };
        self.backends.iter().filter_map(reason).collect()
    }

    /// A folder for the task's own files, removed when the services stop.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        // Each server waits for its own end when it is dropped; asked first, they stop side by side.
        for server in &self.servers {
            server.process.ask_to_stop();
        }
    }
}

fn make_available(backend: Backend, folder: &Folder, tools: &Path) -> (Availability, Option<Server>) {
    let variable = backend.variable();
    if let Some(url) = env::var(variable).ok().filter(|url| !url.is_empty()) {
        return (
            Availability::Ready {
                url,
                origin: format!("given by {variable}"),
            },
            None,
        );
    }
    if let Err(failure) = backend.install(tools) {
        let reason = format!("{failure:#}");
        return (Availability::Missing { reason }, None);
    }
    match backend.launch(folder, tools).context("cannot start it") {
        Ok(Found::Path(path)) => {
            let url = path.display().to_string();
            let origin = if path.is_dir() {
                format!("in {url}")
            } else {
                label(backend.name(), &path)
            };
            (Availability::Ready { url, origin }, None)
        }
        Ok(Found::Server(server)) => {
            let origin = format!("{}, started here", server.label);
            (
                Availability::Ready {
                    url: server.url.clone(),
                    origin,
                },
                Some(server),
            )
        }
        Err(failure) => (
            Availability::Broken {
                reason: format!("{failure:#}"),
            },
            None,
        ),
    }
}
