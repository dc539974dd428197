//! A private MariaDB, without durability. The account `outbox` has all privileges, from 127.0.0.1
//! only.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::process::Manners;
use crate::services::folder::Folder;
use crate::services::install;
use crate::services::programs::{find, run_quietly, tied_as, unprivileged};
use crate::services::server::{Recipe, Server, start};

const INSTALL_DB_LIMIT: Duration = Duration::from_secs(180);

const ACCOUNT: &str = "\
CREATE DATABASE IF NOT EXISTS outbox CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS 'outbox'@'127.0.0.1' IDENTIFIED BY 'outbox';
GRANT ALL PRIVILEGES ON *.* TO 'outbox'@'127.0.0.1' WITH GRANT OPTION;
";

pub(super) fn launch(program: &Path, folder: &Folder) -> Result<Server> {
    let user = unprivileged("mysql")?;
    let home = folder.home("mariadb", user)?;
    let option = |name: &str, path: &Path| {
        let mut option = OsString::from(format!("--{name}="));
        option.push(path);
        option
    };
    let (data, temporary) = (option("datadir", &home.join("data")), option("tmpdir", &home));
    let install_db = install_db().context("there is no mariadb-install-db")?;
    let mut command = tied_as(&install_db, user);
    // Without `--force` the installation looks up the host name of this machine, which often fails
    // in containers.
    command.args([
        "--no-defaults",
        "--force",
        "--skip-test-db",
        "--skip-name-resolve",
    ]);
    command.arg("--auth-root-authentication-method=normal");
    command.args([&data, &temporary]).current_dir(&home);
    run_quietly(command, INSTALL_DB_LIMIT, Manners::GROUP).context("cannot make a data folder")?;
    let account = folder.path().join("account.sql");
    fs::write(&account, ACCOUNT).with_context(|| format!("cannot write {}", account.display()))?;
    let command = |port: u16| {
        let mut command = tied_as(program, user);
        // `--no-defaults` must come first, or the system's configuration applies.
        command.current_dir(&home).arg("--no-defaults");
        command.args([&data, &temporary, &option("init-file", &account)]);
        command.arg(format!("--port={port}"));
        command.args([
            "--bind-address=127.0.0.1",
            // The socket path is relative to the data folder, because the full path may be too
            // long.
            "--socket=mariadb.sock",
            "--pid-file=mariadb.pid",
            // The MariaDB account is for 127.0.0.1. With name resolution, the client's host could
            // get another name.
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--max-connections=300",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-doublewrite=0",
            "--innodb-fast-shutdown=2",
        ]);
        command
    };
    let (process, port) = start(&Recipe {
        manners: Manners::GROUP,
        log: &folder.path().join("mariadb.log"),
        command: &command,
        is_ready: &|_, log| log.contains("ready for connections"),
    })?;
    let url = format!("mysql://outbox:outbox@127.0.0.1:{port}/outbox");
    Ok(Server { process, url })
}

pub(super) fn program() -> Result<PathBuf> {
    let server = || find("mariadbd").or_else(|| find("mysqld"));
    install::debian_package("mariadb-server", || server().is_some() && install_db().is_some())?;
    server().context("the package mariadb-server contains no mariadbd; put it on the PATH")
}

fn install_db() -> Option<PathBuf> {
    find("mariadb-install-db").or_else(|| find("mysql_install_db"))
}
