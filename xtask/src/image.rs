//! `cargo xtask image`: builds the static program as the relay's Containerfile does, and runs it in
//! an empty root.
//!
//! A relay publishes a message and shuts down. Not tested: a container engine, the base image of
//! the build, TLS, and name servers.

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::process::{Manners, Process, tied};
use crate::program;
use crate::services::install::{program as installed, repeat, run_tool};
use crate::services::{Backend, Services, free_port};
use crate::workspace::Workspace;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only build the program, check that it is static, and print its path.
    #[arg(long)]
    build: bool,
}

const PATIENCE: Duration = Duration::from_secs(90);

const PROGRAM: &str = "/usr/local/bin/outbox";
const CONFIG: &str = "/etc/outbox/outbox.toml";
const USER: &str = "65532:65532";
const BUILD: [&str; 4] = ["--release", "--locked", "--features", "mimalloc"];

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let program = build(&workspace)?;
    println!("{}", program.display());
    if options.build {
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = [Backend::Postgres, Backend::PostgresProgram, Backend::Nats];
    let services = Services::start(&wanted, &workspace)?;
    services.report();
    let root = services.folder().join("image");
    let config = format!(
        "[http]\naddress = \"127.0.0.1:{}\"\n[[outbox]]\nname = \"image\"\nmigrate = true\nwriters = true\n\
         [outbox.stream]\nname = \"IMAGE\"\nprefix = \"image\"\n",
        free_port()?
    );
    let etc = root.join("etc");
    fs::create_dir_all(etc.join("outbox"))?;
    fs::write(etc.join("outbox/outbox.toml"), config)?;
    fs::write(etc.join("hosts"), "127.0.0.1 localhost\n")?;
    add(&program, &root)?;
    let command = |words: &[&str]| -> Result<Command> {
        let mut command = in_root(&root, words);
        for (name, backend) in [("DATABASE_URL", Backend::Postgres), ("NATS_URL", Backend::Nats)] {
            let url = services.url(backend)?.replace("127.0.0.1", "localhost");
            command.env(name, url);
        }
        Ok(command)
    };
    let start = command(&["relay", "run", "--config", CONFIG])?;
    let relay = Process::launch(start, Manners::FOREGROUND)?;
    let record = || {
        let server = Path::new(services.url(Backend::PostgresProgram)?);
        let mut psql = Command::new(server.with_file_name("psql"));
        psql.args(["-q", "-o", "/dev/null", "-c"]);
        psql.arg("SELECT outbox_record('order', '1', 'placed', '{}')");
        let psql = psql.arg(services.url(Backend::Postgres)?).stderr(Stdio::null());
        Ok(psql.status().context("cannot run psql")?.success())
    };
    until(&relay, "no message can be recorded", record)?;
    let prove = || {
        let span = ["--since", "1h", "--until", "0s"];
        let words = [&["prove", "-o", "json", "--config", CONFIG], &span[..]].concat();
        let output = command(&words)?.stderr(Stdio::inherit()).output();
        let output = output.context("cannot run the program")?;
        let proof: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        Ok(proof["verdict"] == "balanced" && proof["stream"]["events"] == 1)
    };
    until(&relay, "the books do not balance", prove)?;
    relay.ask_to_stop();
    let status = relay.wait_at_most(PATIENCE)?.context("the relay did not stop")?;
    ensure!(status.success(), "the relay ended with an error ({status})");
    println!("published, proven and stopped");
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    installed("musl-gcc", "musl-tools")?;
    let target = format!("{ARCH}-unknown-linux-musl");
    repeat(|| run_tool(tied("rustup").args(["target", "add", &target])))?;
    let arguments = [&BUILD[..], &["--target", &target]].concat();
    let built = program::build(workspace, "outbox-cli", "outbox", &arguments)?;
    let parent = tempfile::tempdir().context("cannot make a temporary folder")?;
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o711))?;
    let root = parent.path().join("root");
    add(&built, &root)?;
    run_tool(&mut in_root(&root, &["--version"])).context("the program needs more than itself")?;
    Ok(built)
}

fn add(program: &Path, root: &Path) -> Result<()> {
    let path = root.join(PROGRAM.trim_start_matches('/'));
    fs::create_dir_all(path.with_file_name(""))?;
    fs::copy(program, path).context("cannot copy the program")?;
    Ok(())
}

fn in_root(root: &Path, words: &[&str]) -> Command {
    // The kernel does not kill a program of another user with this task, so a time limit applies.
    // Without `--foreground`, the second copy of a signal would end the relay at once.
    let mut command = tied("timeout");
    command.args(["--foreground", "900"]);
    match rustix::process::geteuid().is_root() {
        true => command.args(["chroot", "--userspec", USER]),
        false => command.args(["unshare", "--map-root-user", "--root"]),
    };
    command.arg(root).arg(PROGRAM).args(words).env_clear();
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

fn until(relay: &Process, problem: &str, attempt: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !attempt()? {
        ensure!(
            relay.exited()?.is_none(),
            "{problem}: the relay has ended; see above"
        );
        ensure!(Instant::now() < deadline, "{problem} within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[test]
    fn containerfile_does_the_same() {
        let text = fs::read_to_string(root().join("outbox-cli/deploy/Containerfile")).unwrap();
        let target = "--target \"$(uname -m)-unknown-linux-musl\"";
        let [release, locked, features, mimalloc] = BUILD;
        for expected in [
            format!(
                "cargo build {release} {locked} {target} {features} {mimalloc} -p outbox-cli --bin outbox\n"
            ),
            format!("ENTRYPOINT [\"{PROGRAM}\"]\nCMD [\"relay\", \"run\", \"--config\", \"{CONFIG}\"]\n"),
            format!("USER {USER}\n"),
        ] {
            assert!(text.contains(&expected), "{expected}");
        }
    }
}
