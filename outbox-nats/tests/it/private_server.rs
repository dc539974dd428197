//! A nats-server for a single test, which may kill it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outbox_testing::{backend_url, free_port};
use rustix::process::{Pid, WaitOptions, waitpid};
use tempfile::TempDir;

use crate::environment::SOON;

const BINARY: &str = "OUTBOX_TEST_NATS_OLD_BIN";

pub(crate) struct PrivateServer {
    binary: PathBuf,
    arguments: Vec<String>,
    port: u16,
    store: TempDir,
    has_jetstream: bool,
    process: Option<Child>,
}

impl PrivateServer {
    pub(crate) async fn start(arguments: &[&str]) -> Option<Self> {
        let mut server = Self::stopped(binary()?, free_port(), arguments);
        server.restart().await;
        Some(server)
    }

    pub(crate) async fn start_without_jetstream() -> Option<Self> {
        let mut server = Self::stopped(binary()?, free_port(), &[]);
        server.has_jetstream = false;
        server.restart().await;
        Some(server)
    }

    pub(crate) fn stopped(binary: PathBuf, port: u16, arguments: &[&str]) -> Self {
        Self {
            binary,
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            port,
            store: TempDir::new().unwrap(),
            has_jetstream: true,
            process: None,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn kill_and_copy_store(&mut self) -> TempDir {
        self.kill();
        let copy = TempDir::new().unwrap();
        copy_folder(self.store.path(), copy.path());
        copy
    }

    pub(crate) fn kill_and_replace_store(&mut self, copy: TempDir) {
        self.kill();
        self.store = copy;
    }

    pub(crate) fn runs(&self) -> bool {
        self.process.is_some()
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Pauses the server by SIGSTOP: connections stay open without answers. Returns when all
    /// threads have stopped, because a running thread may still answer.
    pub(crate) fn pause(&self) {
        self.signal("-STOP");
        let process = Pid::from_child(self.process.as_ref().unwrap());
        let (_, status) = waitpid(Some(process), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let process = self.process.as_ref().unwrap().id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &process])
                .status()
                .unwrap()
                .success()
        );
    }

    pub(crate) async fn restart(&mut self) {
        self.kill();
        let address = self.address();
        let listening = async {
            loop {
                let process = self.spawn();
                let process = self.process.insert(process);
                // The server ends at once if a connection of another test has taken its port.
                while process.try_wait().unwrap().is_none() {
                    if tokio::net::TcpStream::connect(&address).await.is_ok() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        };
        tokio::time::timeout(SOON, listening)
            .await
            .expect("a server that listens");
    }

    fn spawn(&self) -> Child {
        Command::new(&self.binary)
            .args(["-a", "127.0.0.1", "-p", &self.port.to_string(), "-sd"])
            .arg(self.store.path())
            .args(self.has_jetstream.then_some("-js"))
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn binary() -> Option<PathBuf> {
    binary_of(BINARY)
}

pub(crate) fn binary_of(variable: &'static str) -> Option<PathBuf> {
    backend_url(variable).map(PathBuf::from)
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}
