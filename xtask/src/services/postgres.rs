//! A private PostgreSQL.
//!
//! Its data need not survive anything, so nothing is synced to disk. It listens on TCP only: a socket would need a
//! path shorter than some temporary folders are.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use rustix::process::Signal;

use anyhow::{Context as _, Result, anyhow};

use crate::process::Manners;
use crate::services::folder::{Folder, home};
use crate::services::programs::{User, find, find_in, label, tied_as, unprivileged};
use crate::services::server::{Recipe, Server, start};
use crate::services::{install, quiet};

const NAME: &str = "PostgreSQL";
const INITDB_LIMIT: Duration = Duration::from_secs(180);

/// SIGQUIT is PostgreSQL's immediate shutdown: there is nothing worth writing down.
const MANNERS: Manners = Manners {
    signal: Signal::QUIT,
    patience: Duration::from_secs(10),
    own_group: true,
};

/// Interrupted, `initdb` leaves shared memory behind until the next boot, and it takes but a second or two. So it is
/// asked to carry on, which is to say to finish.
const INITDB_MANNERS: Manners = Manners {
    signal: Signal::CONT,
    patience: Duration::from_secs(10),
    own_group: true,
};

/// `name` is that of its files. `further` are settings besides those that each server has.
pub(super) fn launch(folder: &Folder, name: &str, further: &[&str]) -> Result<Server> {
    let programs = programs()?;
    let user = unprivileged("postgres")?;
    let home = home(folder, name, user)?;
    let data = home.join("data");
    initdb(&programs, &home, &data, user)?;
    ask_for_passwords(&data)?;
    let command = |port: u16| {
        let mut command = tied_as(&programs.join("postgres"), user);
        command
            .current_dir(&home)
            .arg("-D")
            .arg(&data)
            .arg("-p")
            .arg(port.to_string());
        let settings = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=200",
            "fsync=off",
            "full_page_writes=off",
            // Files in the data folder are removed with it, even if the server was killed.
            "dynamic_shared_memory_type=mmap",
        ];
        command.args(settings.iter().chain(further).flat_map(|setting| ["-c", setting]));
        command
    };
    let log = folder.path().join(format!("{name}.log"));
    let recipe = Recipe {
        name: NAME,
        manners: MANNERS,
        log: &log,
        command: &command,
        is_ready: &|_, _| is_ready(&data),
    };
    let (process, port) = start(&recipe)?;
    let label = label(NAME, &programs.join("postgres"));
    Ok(Server {
        process,
        url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
        label,
    })
}

/// The same with TLS, for whoever asks for it. `certificates` has `server.pem` and `server.key`.
pub(super) fn launch_with_tls(folder: &Folder, certificates: &Path) -> Result<Server> {
    let name = "postgres_tls";
    let user = unprivileged("postgres")?;
    let own = folder.subfolder("postgres_certificates", user)?;
    let mut files = Vec::new();
    for file in ["server.pem", "server.key"] {
        let copy = own.join(file);
        let why = || format!("cannot make {}", copy.display());
        fs::copy(certificates.join(file), &copy).with_context(why)?;
        // The server refuses a key that others could read, or that is somebody else's.
        fs::set_permissions(&copy, Permissions::from_mode(0o600)).with_context(why)?;
        if let Some(user) = user {
            chown(&copy, Some(user.uid), Some(user.gid)).with_context(why)?;
        }
        files.push(copy.display().to_string());
    }
    let settings = [
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", files[0]),
        format!("ssl_key_file={}", files[1]),
    ];
    launch(folder, name, &settings.each_ref().map(String::as_str))
}

/// The program that sends statements, of the same version or on the PATH.
pub(crate) fn psql() -> Result<PathBuf> {
    let beside = programs().ok().and_then(|folder| find_in("psql", [folder]));
    beside
        .or_else(|| find("psql"))
        .ok_or_else(|| anyhow!("there is no psql; install it (Debian: apt-get install postgresql-client)"))
}

/// The folder that holds `initdb` and `postgres`, which belong to one version.
pub(super) fn programs() -> Result<PathBuf> {
    if let Some(found) = installed() {
        return Ok(found);
    }
    install::debian_package_unless("postgresql", || installed().is_some())?;
    installed().ok_or_else(|| anyhow!("the package postgresql brought no initdb; put it on the PATH"))
}

fn installed() -> Option<PathBuf> {
    // Links on the PATH lead to the folder where the programs find each other.
    let on_path = find("initdb")
        .and_then(|path| path.canonicalize().ok())
        .and_then(|path| parent_with_server(&path));
    on_path.or_else(|| newest(Path::new("/usr/lib/postgresql")).ok().flatten())
}

fn parent_with_server(initdb: &Path) -> Option<PathBuf> {
    let folder = initdb.parent()?.to_path_buf();
    find_in("postgres", [folder.clone()]).map(|_| folder)
}

/// Debian keeps one folder per major version and puts none of them on the PATH.
fn newest(versions: &Path) -> io::Result<Option<PathBuf>> {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir(versions)? {
        let entry = entry?;
        let Ok(version) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        let folder = entry.path().join("bin");
        // A client package alone leaves a folder without the server.
        if let Some(folder) = find_in("initdb", [folder])
            .as_deref()
            .and_then(parent_with_server)
        {
            found.push((version, folder));
        }
    }
    Ok(found.into_iter().max().map(|(_, folder)| folder))
}

fn initdb(programs: &Path, home: &Path, data: &Path, user: Option<User>) -> Result<()> {
    let mut command = tied_as(&programs.join("initdb"), user);
    command.args([
        "--username=postgres",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
        "-D",
    ]);
    command.arg(data);
    // The caller's folder may be closed to that user, and PostgreSQL returns to where it was started.
    command.current_dir(home);
    quiet::run_with(command, INITDB_LIMIT, INITDB_MANNERS).context("cannot make a data folder")
}

/// Members of this role are asked for their passwords, and nobody else: for tests of logins. The first line that fits counts.
fn ask_for_passwords(data: &Path) -> Result<()> {
    let rules = data.join("pg_hba.conf");
    let write = || {
        let others = fs::read_to_string(&rules)?;
        // Written in place, because the file belongs to the server's user.
        fs::write(
            &rules,
            format!("host all +outbox_password all scram-sha-256\n{others}"),
        )
    };
    write().with_context(|| format!("cannot write {}", rules.display()))
}

/// The server writes its status into its own data folder, so no stranger on the same port can be taken for it.
fn is_ready(data: &Path) -> bool {
    let status = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    status.lines().nth(7).is_some_and(|line| line.trim() == "ready")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_complete_version_is_taken() {
        let versions = tempfile::tempdir().unwrap();
        let programs = [
            ("9", "initdb"),
            ("9", "postgres"),
            ("15", "initdb"),
            ("15", "postgres"),
            ("16", "psql"),
        ];
        for (version, program) in programs {
            let folder = versions.path().join(version).join("bin");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(program), "").unwrap();
            fs::set_permissions(folder.join(program), Permissions::from_mode(0o755)).unwrap();
        }
        let found = newest(versions.path()).unwrap().unwrap();
        assert_eq!(found, versions.path().join("15").join("bin"));
    }
}
