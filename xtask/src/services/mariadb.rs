//! A private MariaDB.
//!
//! The account `outbox` may do everything from 127.0.0.1 and from nowhere else. Its data need not survive anything, so
//! nothing is synced to disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use anyhow::{Context as _, Result, anyhow};

use crate::process::Manners;
use crate::services::folder::{Folder, home};
use crate::services::programs::{User, find, label, tied_as, unprivileged};
use crate::services::server::{Recipe, Server, start};
use crate::services::{install, quiet};

const NAME: &str = "MariaDB";
const INSTALL_DB_LIMIT: Duration = Duration::from_secs(180);
const MANNERS: Manners = Manners {
    signal: Signal::TERM,
    patience: Duration::from_secs(10),
    own_group: true,
};

/// Run by the server at its start, before it accepts connections.
const ACCOUNT: &str = "\
CREATE DATABASE IF NOT EXISTS outbox CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS 'outbox'@'127.0.0.1' IDENTIFIED BY 'outbox';
GRANT ALL PRIVILEGES ON *.* TO 'outbox'@'127.0.0.1' WITH GRANT OPTION;
";

pub(super) struct Programs {
    pub(super) server: PathBuf,
    install_db: PathBuf,
}

pub(super) fn launch(folder: &Folder) -> Result<Server> {
    let programs = programs()?;
    let user = unprivileged("mysql")?;
    let home = home(folder, "mariadb", user)?;
    let data = home.join("data");
    install_db(&programs, &home, &data, user)?;
    let account = folder.path().join("account.sql");
    fs::write(&account, ACCOUNT).with_context(|| format!("cannot write {}", account.display()))?;
    let command = |port: u16| {
        let mut command = tied_as(&programs.server, user);
        command.current_dir(&home);
        // This one must come first; without it the system's configuration would apply.
        command.arg("--no-defaults");
        command
            .arg(option("datadir", &data))
            .arg(option("tmpdir", &home))
            .arg(option("init-file", &account));
        command.arg(format!("--port={port}"));
        command.args([
            "--bind-address=127.0.0.1",
            // Relative to the data folder: a socket's full path may be too long in a deep temporary folder.
            "--socket=mariadb.sock",
            "--pid-file=mariadb.pid",
            // The account is for 127.0.0.1, which a reverse look-up might turn into another name.
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--max-connections=300",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-doublewrite=0",
            // A fast shutdown like a crash: nobody will read these files again.
            "--innodb-fast-shutdown=2",
        ]);
        command
    };
    let log = folder.path().join("mariadb.log");
    let recipe = Recipe {
        name: NAME,
        manners: MANNERS,
        log: &log,
        command: &command,
        is_ready: &|_, log| log.contains("ready for connections"),
    };
    let (process, port) = start(&recipe)?;
    let label = label(NAME, &programs.server);
    Ok(Server {
        process,
        url: format!("mysql://outbox:outbox@127.0.0.1:{port}/outbox"),
        label,
    })
}

pub(super) fn programs() -> Result<Programs> {
    if let Some(programs) = installed() {
        return Ok(programs);
    }
    install::debian_package_unless("mariadb-server", || installed().is_some())?;
    installed().ok_or_else(|| anyhow!("the package mariadb-server brought no mariadbd; put it on the PATH"))
}

fn installed() -> Option<Programs> {
    // The older names are from before the fork chose its own.
    let server = find("mariadbd").or_else(|| find("mysqld"))?;
    let install_db = find("mariadb-install-db").or_else(|| find("mysql_install_db"))?;
    Some(Programs { server, install_db })
}

fn install_db(programs: &Programs, home: &Path, data: &Path, user: Option<User>) -> Result<()> {
    let mut command = tied_as(&programs.install_db, user);
    command.current_dir(home);
    // Without `--force` it insists on looking up the name of this machine, which containers often cannot.
    command.args([
        "--no-defaults",
        "--force",
        "--skip-test-db",
        "--skip-name-resolve",
    ]);
    command
        .arg("--auth-root-authentication-method=normal")
        .arg(option("datadir", data))
        .arg(option("tmpdir", home));
    quiet::run(command, INSTALL_DB_LIMIT).context("cannot make a data folder")
}

fn option(name: &str, path: &Path) -> std::ffi::OsString {
    let mut option = std::ffi::OsString::from(format!("--{name}="));
    option.push(path);
    option
}
