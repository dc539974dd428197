//! Database servers and a nats-server for one test, which may change their settings and kill them.
//!
//! Each server has a data folder, which survives the server and is removed on drop. Nothing is
//! synced to disk: data written to the kernel survives a killed server.

#![cfg(unix)]

pub mod planted;
mod rerun;

pub use rerun::Rerun;

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outbox_testing::free_port;
use rustix::process::{Pid, Signal, kill_process};
use sea_orm::{ConnectOptions, Database, DatabaseConnection};
use tempfile::TempDir;
use tokio::net::TcpStream;

/// Why a server cannot be started.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Time limit of each step.
pub const SOON: Duration = Duration::from_secs(60);

/// A server with a data folder, which survives the server. Dropping the value kills the server.
#[derive(Debug)]
pub struct Server {
    folder: TempDir,
    port: u16,
    words: Vec<String>,
    user: Option<u32>,
    /// Folder of locales that the system does not have.
    locales: Option<PathBuf>,
    process: Option<Child>,
    url: String,
}

impl Server {
    /// Creates a PostgreSQL server. `initdb` is in the folder of `program`; a setting is written as
    /// `wal_level=logical`.
    ///
    /// # Errors
    ///
    /// Returns an error if `initdb` fails.
    pub fn postgres(program: &Path, settings: &[&str]) -> Result<Self, Failure> {
        let (folder, user) = prepare("postgres")?;
        let data = folder.path().join("data");
        let initdb = [
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "-D",
        ];
        let mut command = as_user(&program.with_file_name("initdb"), user, folder.path());
        run(command.args(initdb).arg(&data))?;
        Ok(Self::postgres_of(folder, user, program, settings))
    }

    fn postgres_of(folder: TempDir, user: Option<u32>, program: &Path, settings: &[&str]) -> Self {
        let port = free_port();
        let mut words = vec![
            text(program),
            "-D".to_owned(),
            text(&folder.path().join("data")),
            "-p".to_owned(),
            port.to_string(),
        ];
        let common = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
        ];
        for setting in common.iter().chain(settings) {
            words.extend(["-c".to_owned(), (*setting).to_owned()]);
        }
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        Self::new(folder, port, words, user, url)
    }

    /// Creates a standby server with a copy of this server's data; this server must not run. The
    /// standby server reads the WAL through the physical replication slot `slot`.
    ///
    /// # Errors
    ///
    /// Returns an error if the data cannot be copied.
    pub fn standby(&self, slot: &str, settings: &[&str]) -> Result<Self, Failure> {
        let (folder, user) = prepare("postgres")?;
        let data = folder.path().join("data");
        run(Command::new("cp")
            .arg("-a")
            .args([&self.folder.path().join("data"), &data]))?;
        // The copy excludes slots, which belong to the server that created them.
        for copied in fs::read_dir(data.join("pg_replslot"))? {
            fs::remove_dir_all(copied?.path())?;
        }
        fs::write(data.join("standby.signal"), "")?;
        let primary = format!(
            "primary_conninfo=host=127.0.0.1 port={} user=postgres dbname=postgres application_name={slot}",
            self.port
        );
        let slot = format!("primary_slot_name={slot}");
        let settings = [&[&*primary, &*slot], settings].concat();
        Ok(Self::postgres_of(
            folder,
            user,
            Path::new(&self.words[0]),
            &settings,
        ))
    }

    /// Creates a MariaDB server with a database and an administrator `shop`; a setting is written
    /// as `--innodb-rollback-on-timeout=ON`.
    ///
    /// # Errors
    ///
    /// Returns an error if the data cannot be created.
    pub fn mariadb(program: &Path, settings: &[&str]) -> Result<Self, Failure> {
        let (folder, user) = prepare("mysql")?;
        let port = free_port();
        let data = folder.path().join("data");
        let mut command = as_user(
            &beside_or_on_path(program, "mariadb-install-db"),
            user,
            folder.path(),
        );
        let options = [
            "--no-defaults",
            "--force",
            "--skip-test-db",
            "--skip-name-resolve",
        ];
        // Temporary tables are named by a process id, so two processes with one folder conflict.
        run(command
            .env("TMPDIR", folder.path())
            .args(options)
            .arg("--auth-root-authentication-method=normal")
            .arg(format!("--datadir={}", text(&data))))?;
        let account = folder.path().join("account.sql");
        let sql = "CREATE DATABASE IF NOT EXISTS shop; CREATE USER IF NOT EXISTS 'shop'@'127.0.0.1' IDENTIFIED BY 'shop';\n\
                   GRANT ALL PRIVILEGES ON *.* TO 'shop'@'127.0.0.1' WITH GRANT OPTION;\n";
        fs::write(&account, sql.replace("; ", ";\n"))?;
        let mut words = vec![
            text(program),
            "--no-defaults".to_owned(),
            format!("--datadir={}", text(&data)),
            format!("--tmpdir={}", text(folder.path())),
            format!("--init-file={}", text(&account)),
            format!("--port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--socket=mariadb.sock".to_owned(),
            "--pid-file=mariadb.pid".to_owned(),
            "--skip-name-resolve".to_owned(),
            // MariaDB writes each commit to the kernel, without a sync.
            "--innodb-flush-log-at-trx-commit=2".to_owned(),
        ];
        words.extend(settings.iter().map(|setting| (*setting).to_owned()));
        let url = format!("mysql://shop:shop@127.0.0.1:{port}/shop");
        Ok(Self::new(folder, port, words, user, url))
    }

    /// Creates a PgBouncer for the PostgreSQL server on port `server` of 127.0.0.1, for the user
    /// `postgres`. `settings` are lines of PgBouncer's section, as `pool_mode = transaction`.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be written.
    pub fn pgbouncer(program: &Path, server: u16, settings: &str) -> Result<Self, Failure> {
        let (folder, user) = prepare("nobody")?;
        let port = free_port();
        let (users, config) = (folder.path().join("users"), folder.path().join("pgbouncer.ini"));
        fs::write(&users, "\"postgres\" \"\"\n")?;
        let text_of_config = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\nserver_login_retry = 1\n{settings}\n",
            users.display()
        );
        fs::write(&config, text_of_config)?;
        let words = vec![text(program), "-q".to_owned(), text(&config)];
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        Ok(Self::new(folder, port, words, user, url))
    }

    /// Makes a PostgreSQL server report in German from its next start on. `localedef` creates the
    /// locale from the system's locale sources (Debian: `locales`).
    ///
    /// # Errors
    ///
    /// Returns an error if `localedef` fails.
    pub fn in_german(mut self, localedef: &Path) -> Result<Self, Failure> {
        let locales = self.folder.path().join("locales");
        fs::create_dir(&locales)?;
        let name = "de_DE.UTF-8";
        let mut command = Command::new(localedef);
        run(command
            .args(["-i", "de_DE", "-f", "UTF-8"])
            .arg(locales.join(name)))?;
        self.words
            .extend(["-c".to_owned(), format!("lc_messages={name}")]);
        self.locales = Some(locales);
        Ok(self)
    }

    /// Creates a nats-server with JetStream.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder cannot be created.
    pub fn nats(program: &Path) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let port = free_port();
        let words = vec![
            text(program),
            "-a".to_owned(),
            "127.0.0.1".to_owned(),
            "-p".to_owned(),
            port.to_string(),
            "-js".to_owned(),
            "-sd".to_owned(),
            text(folder.path()),
        ];
        let url = format!("nats://127.0.0.1:{port}");
        Ok(Self::new(folder, port, words, None, url))
    }

    /// Adds a configuration file to a nats-server.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub fn with_config(mut self, config: &str) -> Result<Self, Failure> {
        let path = self.folder.path().join("nats.conf");
        fs::write(&path, config)?;
        self.words.extend(["-c".to_owned(), text(&path)]);
        Ok(self)
    }

    fn new(folder: TempDir, port: u16, words: Vec<String>, user: Option<u32>, url: String) -> Self {
        Self {
            folder,
            port,
            words,
            user,
            locales: None,
            process: None,
            url,
        }
    }

    /// The server's address, the same after each start.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address of another database of the server.
    pub fn url_of(&self, database: &str) -> String {
        let (server, _) = self.url.rsplit_once('/').unwrap_or_default();
        format!("{server}/{database}")
    }

    /// The server's port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Starts the server and waits until the server listens. Retries while a process of the
    /// previous start still uses the data.
    ///
    /// # Errors
    ///
    /// Returns an error if the server does not listen within [`SOON`].
    pub async fn start(&mut self) -> Result<(), Failure> {
        let started = async {
            loop {
                let mut process = self.spawn()?;
                while process.try_wait()?.is_none() {
                    if TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
                        return Ok::<_, Failure>(process);
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        let started = tokio::time::timeout(SOON, started).await;
        let process = started.map_err(|_| format!("the server does not start:\n{}", self.log()))?;
        self.process = Some(process?);
        Ok(())
    }

    fn spawn(&self) -> Result<Child, Failure> {
        let mut command = as_user(Path::new(&self.words[0]), self.user, self.folder.path());
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))?;
        command
            .args(&self.words[1..])
            .envs(self.locales.as_ref().map(|locales| ("LOCPATH", locales)))
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command.spawn()?)
    }

    /// The process id of a running server.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// The server's output of all starts.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Kills the server and its child processes, like a power loss. Does nothing if the server does
    /// not run.
    ///
    /// # Errors
    ///
    /// Returns an error if the operating system refuses the signal.
    pub fn kill(&mut self) -> Result<(), Failure> {
        if let Some(mut process) = self.process.take() {
            let children = children(process.id());
            process.kill()?;
            for child in children.into_iter().filter_map(Pid::from_raw) {
                // The child process may have ended with its parent.
                let _ = kill_process(child, Signal::KILL);
            }
            process.wait()?;
        }
        Ok(())
    }

    /// Connects to the database as soon as it answers.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer within [`SOON`].
    pub async fn connect(&self, connections: u32) -> Result<DatabaseConnection, Failure> {
        self.connect_by(&self.url, connections).await
    }

    /// Connects as [`Self::connect`], to another database of the server.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer within [`SOON`].
    pub async fn connect_to(&self, database: &str, connections: u32) -> Result<DatabaseConnection, Failure> {
        self.connect_by(&self.url_of(database), connections).await
    }

    async fn connect_by(&self, url: &str, connections: u32) -> Result<DatabaseConnection, Failure> {
        let connected = async {
            loop {
                let mut options = ConnectOptions::new(url);
                options.max_connections(connections).sqlx_logging(false);
                if let Ok(db) = Database::connect(options).await {
                    return db;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let connected = tokio::time::timeout(SOON, connected).await;
        Ok(connected.map_err(|_| format!("no connection to port {}:\n{}", self.port, self.log()))?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Creates a folder that the server's user may write to. Returns the user if the test runs as root.
fn prepare(name: &str) -> Result<(TempDir, Option<u32>), Failure> {
    let folder = tempfile::tempdir()?;
    let mut user = None;
    if rustix::process::geteuid().is_root() {
        let output = Command::new("id").args(["-u", name]).output()?;
        user = Some(String::from_utf8_lossy(&output.stdout).trim().parse()?);
    }
    chown(folder.path(), user, None)?;
    Ok((folder, user))
}

fn as_user(program: &Path, user: Option<u32>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    if let Some(user) = user {
        command.uid(user);
    }
    command
}

fn beside_or_on_path(program: &Path, name: &str) -> PathBuf {
    let beside = program.with_file_name(name);
    if beside.exists() { beside } else { name.into() }
}

/// Process ids of child processes. Empty without `/proc`; PostgreSQL's child processes then end
/// without a signal.
fn children(parent: u32) -> Vec<i32> {
    let of_parent = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // In `/proc`, the program name is in brackets and may contain spaces. State and parent
        // follow.
        let (_, rest) = stat.rsplit_once(')')?;
        let is_child = rest.split_whitespace().nth(1)?.parse::<u32>().ok() == Some(parent);
        is_child.then(|| entry.file_name().to_str()?.parse().ok())?
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(of_parent).collect()
}

fn run(command: &mut Command) -> Result<(), Failure> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into()),
    }
}
