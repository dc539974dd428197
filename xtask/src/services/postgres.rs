//! A private PostgreSQL, without durability. The server listens on TCP only: a socket path may be
//! too long in a temporary folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use crate::process::Manners;
use crate::services::folder::Folder;
use crate::services::install;
use crate::services::programs::{find, is_executable, run_quietly, tied_as, unprivileged};
use crate::services::server::{Recipe, Server, start};

const INITDB_LIMIT: Duration = Duration::from_secs(180);

pub(super) fn launch(program: &Path, folder: &Folder, name: &str, further: &[&str]) -> Result<Server> {
    let user = unprivileged("postgres")?;
    let home = folder.home(name, user)?;
    let data = home.join("data");
    let mut initdb = tied_as(&program.with_file_name("initdb"), user);
    initdb.args([
        "--username=postgres",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
    ]);
    initdb.arg("-D").arg(&data).current_dir(&home);
    // An interrupted `initdb` leaves shared memory until the next boot. So `initdb` is not
    // interrupted.
    let to_its_end = Manners {
        signal: Signal::CONT,
        ..Manners::GROUP
    };
    run_quietly(initdb, INITDB_LIMIT, to_its_end).context("cannot make a data folder")?;
    ask_for_passwords(&data)?;
    let command = |port: u16| {
        let mut command = tied_as(program, user);
        command.current_dir(&home).arg("-D").arg(&data);
        command.args(["-p", &port.to_string()]);
        let settings = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=200",
            "fsync=off",
            "full_page_writes=off",
            // The server removes files in its data folder even after a kill.
            "dynamic_shared_memory_type=mmap",
        ];
        command.args(settings.iter().chain(further).flat_map(|setting| ["-c", setting]));
        command
    };
    let (process, port) = start(&Recipe {
        manners: Manners {
            signal: Signal::QUIT,
            ..Manners::GROUP
        },
        log: &folder.path().join(format!("{name}.log")),
        command: &command,
        is_ready: &|_, _| is_ready(&data),
    })?;
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
    Ok(Server { process, url })
}

pub(super) fn program() -> Result<PathBuf> {
    install::debian_package("postgresql", || installed().is_some())?;
    installed().context("the package postgresql contains no initdb; put it on the PATH")
}

fn installed() -> Option<PathBuf> {
    let on_path = find("initdb").and_then(|path| path.canonicalize().ok());
    let on_path = on_path.map(|initdb| initdb.with_file_name("postgres"));
    let on_path = on_path.filter(|postgres| is_executable(postgres));
    on_path.or_else(|| newest(Path::new("/usr/lib/postgresql")))
}

/// Finds the newest PostgreSQL. Debian has one folder per major version, none on the PATH. A client
/// package leaves a folder without the server.
fn newest(versions: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(versions).ok()?.flatten();
    let found = entries.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let bin = entry.path().join("bin");
        let is_complete = ["initdb", "postgres"]
            .iter()
            .all(|program| is_executable(&bin.join(program)));
        is_complete.then(|| (version, bin.join("postgres")))
    });
    found.max().map(|(_, program)| program)
}

/// Requires passwords for members of this role, for login tests. The first matching line of
/// `pg_hba.conf` counts.
fn ask_for_passwords(data: &Path) -> Result<()> {
    let rules = data.join("pg_hba.conf");
    let line = "host all +outbox_password all scram-sha-256\n";
    let written = fs::read_to_string(&rules).and_then(|others| fs::write(&rules, format!("{line}{others}")));
    written.with_context(|| format!("cannot write {}", rules.display()))
}

/// Whether the server is ready. The server writes its status into its data folder, so another
/// server on the same port cannot match.
fn is_ready(data: &Path) -> bool {
    let status = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    status.lines().nth(7).is_some_and(|line| line.trim() == "ready")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn newest_complete_version_is_taken() {
        let versions = tempfile::tempdir().unwrap();
        for path in ["9/initdb", "9/postgres", "15/initdb", "15/postgres", "16/initdb"] {
            let (version, program) = path.split_once('/').unwrap();
            let bin = versions.path().join(version).join("bin");
            fs::create_dir_all(&bin).unwrap();
            fs::write(bin.join(program), "").unwrap();
            fs::set_permissions(bin.join(program), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let expected = versions.path().join("15/bin/postgres");
        assert_eq!(newest(versions.path()), Some(expected));
    }
}
