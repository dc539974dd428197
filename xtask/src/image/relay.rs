//! The root of the image on this machine, and the relay in it.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use super::AUTHORITIES;
use crate::process::{Manners, Process, tied};
use crate::services::{Backend, Services};

/// How long an answer is waited for, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(50);

/// Whether the database must have a certificate of an authority of the image, or only TLS.
#[derive(Clone, Copy, Debug)]
pub(super) enum Database {
    Verified,
    Unverified,
}

impl Database {
    fn parameters(self) -> String {
        match self {
            Self::Verified => format!("sslmode=verify-full&sslrootcert=/{AUTHORITIES}"),
            Self::Unverified => "sslmode=require".to_owned(),
        }
    }
}

/// The root of the image, and what the program gets from outside.
#[derive(Debug)]
pub(super) struct Image {
    root: PathBuf,
    user: (u32, u32),
    command: Vec<String>,
    port: u16,
    database_url: String,
    nats_url: String,
    log: PathBuf,
}

impl Image {
    pub(super) fn new(
        root: PathBuf,
        user: (u32, u32),
        command: Vec<String>,
        services: &Services,
    ) -> Result<Self> {
        let by_name = |url: &str| url.replace("127.0.0.1", "localhost");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let port = listener.context("no free port on 127.0.0.1")?.port();
        let image = Self {
            root,
            user,
            command,
            port,
            database_url: by_name(services.url(Backend::PostgresTls)?),
            nats_url: by_name(services.url(Backend::NatsTls)?).replace("nats://", "tls://"),
            log: services.folder().join("relay.log"),
        };
        let config = format!(
            "[http]\naddress = \"127.0.0.1:{port}\"\n[[outbox]]\nname = \"image\"\nmigrate = true\nwriters = true\n\
             nats_require_tls = true\n[outbox.stream]\nname = \"IMAGE\"\nprefix = \"image\"\n"
        );
        image.write("etc/outbox/outbox.toml", &config)?;
        Ok(image)
    }

    /// Writes a file into the root.
    pub(super) fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = self.root.join(path);
        let why = || format!("cannot write {}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(why)?;
        }
        fs::write(&path, text).with_context(why)
    }

    /// Adds an authority to those of the image.
    pub(super) fn trust(&self, authority: &Path) -> Result<()> {
        let why = || {
            format!(
                "cannot add {} to the authorities of the image",
                authority.display()
            )
        };
        let more = fs::read(authority).with_context(why)?;
        let mut file = File::options()
            .append(true)
            .open(self.root.join(AUTHORITIES))
            .with_context(why)?;
        file.write_all(&more).with_context(why)
    }

    /// A command with the image as its root, and its user where we may choose one. It ends after some minutes, whatever happens: the kernel does not end it
    /// with us, because its user is another.
    fn command(&self, database: Database, words: &[&str]) -> Command {
        let mut command = tied("timeout");
        // Otherwise it would pass signals on twice, and a second one ends the relay at once.
        command.args(["--foreground", "900"]);
        if rustix::process::geteuid().is_root() {
            let (user, group) = self.user;
            command.args(["chroot", &format!("--userspec={user}:{group}")]);
            command.arg(&self.root);
        } else {
            command.args(["unshare", "--map-root-user", "--root"]);
            command.arg(&self.root);
        }
        command.args(words);
        command.env_clear();
        command.env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        let database_url = format!("{}?{}", self.database_url, database.parameters());
        command.env("DATABASE_URL", database_url);
        command.env("NATS_URL", &self.nats_url);
        command
    }

    /// What a command of the program prints, if it succeeds.
    pub(super) fn ask(&self, words: &[&str]) -> Result<String> {
        let program = self.command[0].as_str();
        let all = [&[program], words, &["--config", "/etc/outbox/outbox.toml"]].concat();
        let mut command = self.command(Database::Verified, &all);
        command.stdout(Stdio::piped());
        let mut process = Process::launch(command, Manners::FOREGROUND)?;
        let mut answer = String::new();
        if let Some(mut stdout) = process.stdout() {
            let read = stdout.read_to_string(&mut answer);
            read.context("cannot read what the program prints")?;
        }
        let status = process.wait()?;
        match status.success() {
            true => Ok(answer),
            false => Err(anyhow!(
                "`outbox {}` failed in the image ({status}): {answer}",
                words.join(" ")
            )),
        }
    }
}

/// A running relay.
#[derive(Debug)]
pub(super) struct Relay<'a> {
    image: &'a Image,
    process: Process,
}

impl<'a> Relay<'a> {
    /// Starts it as the image does.
    pub(super) fn start(image: &'a Image, database: Database) -> Result<Self> {
        let why = || format!("cannot write {}", image.log.display());
        let log = File::create(&image.log).with_context(why)?;
        let words: Vec<&str> = image.command.iter().map(String::as_str).collect();
        let mut command = image.command(database, &words);
        command.stdout(log.try_clone().with_context(why)?).stderr(log);
        let process = Process::launch(command, Manners::FOREGROUND)?;
        Ok(Self { image, process })
    }

    pub(super) fn log(&self) -> String {
        let log = fs::read(&self.image.log).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    pub(super) fn ask_to_stop(&self) {
        self.process.ask_to_stop();
    }

    pub(super) fn end(&self) -> Result<ExitStatus> {
        let ended = self.process.wait_at_most(PATIENCE)?;
        ended.ok_or_else(|| anyhow!("the relay did not end within {PATIENCE:?}:\n{}", self.log()))
    }

    /// Asks until the answer holds this text.
    pub(super) fn until_answer(&self, path: &str, expected: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut answer = String::new();
        while !answer.contains(expected) {
            if let Some(status) = self.process.exited()? {
                bail!("the relay ended ({status}):\n{}", self.log());
            }
            if Instant::now() > deadline {
                bail!(
                    "{path} did not answer with `{expected}` within {PATIENCE:?}, but with:\n{answer}\n{}",
                    self.log()
                );
            }
            thread::sleep(POLL);
            answer = self.get(path).unwrap_or_default();
        }
        Ok(())
    }

    /// Waits until it has said this.
    pub(super) fn until_log(&self, expected: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(expected) {
            if self.process.exited()?.is_some() || Instant::now() > deadline {
                bail!("the relay did not say `{expected}`, but:\n{}", self.log());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn get(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.image.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}
