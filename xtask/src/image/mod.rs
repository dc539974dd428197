//! `cargo xtask image`: builds what the Containerfile of the relay builds, and runs it where nothing else is.
//!
//! There is no container engine in it. The lines RUN and COPY are carried out here, into a folder that becomes the root of the program (`chroot`), with what a
//! container runtime mounts: the configuration, `/etc/hosts` and `/etc/resolv.conf`. The servers have TLS, and are found by a name. So it shows that the program
//! needs no library, finds names with and without a name server, trusts the authorities of the image and no others, and does its work from the first
//! message to the shutdown. Not shown: the base image of the build, and what a container engine adds.

mod containerfile;
mod elf;
mod names;
mod relay;

use std::env::consts::ARCH;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use anyhow::{Context as _, Result, anyhow, bail};

use self::containerfile::Containerfile;
use self::names::NameServer;
use self::relay::{Database, Image, Relay};
use crate::process::{Manners, Process, tied};
use crate::services::{self, Availability, Backend, Services};
use crate::workspace::{Workspace, forget_task};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only build the program, check that it is static, and print its path.
    #[arg(long)]
    build: bool,
}

/// The authorities that the image has.
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let program = build(&workspace)?;
    let bytes = fs::metadata(&program).map_or(0, |metadata| metadata.len());
    eprintln!("static: {} MiB", bytes / (1 << 20));
    if options.build {
        println!("{}", program.display());
        return Ok(ExitCode::SUCCESS);
    }
    let services = Services::start(&[Backend::PostgresTls, Backend::NatsTls], &workspace)?;
    for (backend, availability) in services.backends() {
        if let Availability::Ready { origin, .. } = availability {
            eprintln!("{}: {origin}", backend.name());
        }
    }
    let image = assemble(&workspace, &services)?;

    image.write("etc/hosts", "127.0.0.1 localhost\n")?;
    image.write("etc/resolv.conf", "")?;
    refuses_strangers(&image)?;
    println!("an authority that the image does not have is not trusted");

    image.trust(&services::certificates().join("ca.pem"))?;
    works(&image, &services, 1)?;
    println!("published, proven and stopped, with names from /etc/hosts and TLS to both servers");

    if !rustix::process::geteuid().is_root() {
        println!("not checked: names from a name server, which needs root");
        return Ok(ExitCode::SUCCESS);
    }
    image.write("etc/hosts", "")?;
    image.write("etc/resolv.conf", &NameServer::resolver())?;
    let names = NameServer::start()?;
    works(&image, &services, 2)?;
    if names.asked() == 0 {
        bail!("the program found its servers, and asked no name server for them");
    }
    println!("the same with names from a name server");
    Ok(ExitCode::SUCCESS)
}

/// Builds the program as the Containerfile does, and returns its path. It needs nothing of the system.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    services::musl_tools()?;
    let file = file(workspace)?;
    for line in file.runs.iter().filter(|line| line.starts_with("cargo ")) {
        eprintln!("{line}");
        let mut command = tied("sh");
        command.args(["-c", line]).current_dir(&workspace.root);
        forget_task(&mut command);
        if !Process::launch(command, Manners::GROUP)?.wait()?.success() {
            bail!("the static program does not build; see above");
        }
    }
    let program = file.command.first();
    let copied = file.copies.iter().find(|(_, to)| Some(to) == program);
    let (from, _) = copied
        .ok_or_else(|| anyhow!("the Containerfile starts a program that it does not copy into the image"))?;
    let path = source(from, workspace);
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    match elf::needs(&bytes) {
        Ok(None) => Ok(path),
        Ok(Some(what)) => Err(anyhow!("{} is not static: it needs {what}", path.display())),
        Err(why) => Err(anyhow!("{}: {why}", path.display())),
    }
}

fn file(workspace: &Workspace) -> Result<Containerfile> {
    let path = workspace.root.join("outbox-cli/deploy/Containerfile");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Containerfile::parse(&text)
}

/// Where a path of the stage that builds is on this machine.
fn source(path: &str, workspace: &Workspace) -> PathBuf {
    let path = path.replace('*', ARCH);
    match path.strip_prefix("/src/target/") {
        Some(below) => workspace.target_directory.join(below),
        None => PathBuf::from(path),
    }
}

/// Makes the root of the image.
fn assemble(workspace: &Workspace, services: &Services) -> Result<Image> {
    let file = file(workspace)?;
    let root = services.folder().join("image");
    for (from, to) in &file.copies {
        let (from, to) = (source(from, workspace), root.join(to.trim_start_matches('/')));
        let why = || format!("cannot copy {} to {}", from.display(), to.display());
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).with_context(why)?;
        }
        fs::copy(&from, &to).with_context(why)?;
    }
    Image::new(root, file.user, file.command, services)
}

/// Without the authority of the servers no connection may come about. A database is waited for, and the log says why; NATS ends the relay.
fn refuses_strangers(image: &Image) -> Result<()> {
    let relay = Relay::start(image, Database::Verified)?;
    relay.until_log(
        "out of reach: Connection Error: error communicating with database: invalid peer certificate",
    )?;
    relay.ask_to_stop();
    relay.end()?;
    let relay = Relay::start(image, Database::Unverified)?;
    let status = relay.end()?;
    let log = relay.log();
    if status.success() || !log.contains("no TLS connection to nats server") {
        bail!(
            "the relay trusts a nats-server whose authority it does not know, or ended for another reason ({status}):\n{log}"
        );
    }
    Ok(())
}

/// Takes a relay from its start over three messages to its end. `run` counts from 1, since the outbox stays.
fn works(image: &Image, services: &Services, run: usize) -> Result<()> {
    let relay = Relay::start(image, Database::Verified)?;
    relay.until_answer("/readyz", "200 OK")?;
    for n in 1..=3 {
        let sql = format!("SELECT outbox_record('order', '{run}', 'placed', '{{\"n\": {n}}}')");
        execute(services.url(Backend::PostgresTls)?, &sql)?;
    }
    relay.until_answer("/metrics", "outbox_published_total{outbox=\"image\"} 3")?;
    let proof = image.ask(&["prove", "--since", "1h", "--until", "0s", "-o", "json"])?;
    let proof: serde_json::Value = serde_json::from_str(&proof)
        .with_context(|| format!("what `outbox prove` prints in the image is no JSON: {proof}"))?;
    let found = (
        &proof["verdict"],
        &proof["outbox"]["committed"],
        &proof["stream"]["events"],
    );
    if found != (&"balanced".into(), &(3 * run).into(), &(3 * run).into()) {
        bail!("the books of the image do not balance: {proof:#}");
    }
    relay.ask_to_stop();
    let status = relay.end()?;
    match status.success() {
        true => Ok(()),
        false => Err(anyhow!(
            "the relay did not stop well ({status}):\n{}",
            relay.log()
        )),
    }
}

fn execute(url: &str, sql: &str) -> Result<()> {
    let mut command = tied(services::psql()?);
    command.args([
        "--quiet",
        "--no-psqlrc",
        "--output=/dev/null",
        "-v",
        "ON_ERROR_STOP=1",
        "-c",
        sql,
        url,
    ]);
    let status = Process::launch(command, Manners::GROUP)?.wait()?;
    match status.success() {
        true => Ok(()),
        false => Err(anyhow!("psql failed ({status}); see above")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containerfile_is_understood_and_its_tools_are_ours() {
        let file = file(&Workspace::load().unwrap()).unwrap();
        assert!(file.runs[0].contains("musl-tools") && file.runs[0].contains("rustup target add"));
        assert!(
            file.runs[1].starts_with("cargo build --release --locked"),
            "{}",
            file.runs[1]
        );
        assert!(
            file.copies
                .iter()
                .any(|(_, to)| to.trim_start_matches('/') == AUTHORITIES)
        );
        assert_eq!(file.command[1..3], ["relay", "run"]);
    }
}
