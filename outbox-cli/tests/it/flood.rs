//! Floods of connections, headers and logins: both HTTP servers stay within their bounds and answer other clients.
#![cfg(target_os = "linux")]

use std::process::Command;

use futures_util::future::join_all;
use outbox::testing::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::operate::serve::{Served, basic, users_in};
use crate::place::Program;

const SERVERS: [(&str, &str); 2] = [
    ("DATABASE_URL", "sqlite::memory:"),
    ("NATS_URL", "nats://127.0.0.1:1"),
];

/// More than a process with the usual limit of 1,024 files can hold.
const IDLE: usize = 1_100;

/// The program, which may open no more than 1,024 files.
fn limited() -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "ulimit -n 1024 && exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_outbox"));
    command
}

/// Lets this process hold both ends of its own connections.
fn raise_own_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum.map_or(8_192, |maximum| maximum.min(8_192));
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(current),
            maximum,
        },
    )
    .unwrap();
}

/// The most memory that a process has ever held, in MiB.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

async fn relay() -> (Program, String) {
    raise_own_limit();
    let program = Program::start_by(limited(), "", &SERVERS);
    eventually("the probes", async || program.get("/livez").await.0 == 200).await;
    let address = program.address().unwrap();
    (program, address)
}

fn dashboard(words: &[&str]) -> (Served, tempfile::TempDir) {
    raise_own_limit();
    let folder = tempfile::tempdir().unwrap();
    let mut command = limited();
    command
        .args(["serve", "--address", "127.0.0.1:0"])
        .args(words)
        .env_clear()
        .envs(SERVERS);
    if words.is_empty() {
        command.args(["--users", &users_in(folder.path(), &["vera:viewer"])]);
    }
    (Served::launch(command), folder)
}

async fn connections(address: &str, count: usize) -> Vec<TcpStream> {
    let all = join_all((0..count).map(|_| TcpStream::connect(address))).await;
    all.into_iter().map(Result::unwrap).collect()
}

/// Headers without an end, of 400 kB each. The server may close them.
async fn unfinished_headers(address: &str) {
    let header = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "x".repeat(400_000));
    let send = async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(header.as_bytes()).await;
        stream
    };
    // Kept open until all are sent.
    let _open = join_all((0..1_000).map(|_| send())).await;
}

#[tokio::test]
async fn idle_connections_do_not_silence_probes() {
    let (program, address) = relay().await;
    let open = connections(&address, IDLE).await;
    assert_eq!(program.get("/livez").await.0, 200);
    assert_eq!(program.get("/metrics").await.0, 200);
    drop(open);
}

#[tokio::test]
async fn idle_connections_do_not_silence_the_dashboard() {
    let (served, _folder) = dashboard(&["--role", "viewer"]);
    let open = connections(&served.address, IDLE).await;
    assert_eq!(served.get("/assets/nothing", &[]).await.0, 404);
    drop(open);
}

#[tokio::test]
async fn unfinished_headers_of_probes_take_little_memory() {
    let (program, address) = relay().await;
    let before = peak(program.pid());
    unfinished_headers(&address).await;
    assert_eq!(program.get("/livez").await.0, 200);
    let after = peak(program.pid());
    assert!(after < before + 64, "{before} MiB to {after} MiB");
}

#[tokio::test]
async fn unfinished_headers_of_the_dashboard_take_little_memory() {
    let (served, _folder) = dashboard(&["--role", "viewer"]);
    let before = peak(served.pid());
    unfinished_headers(&served.address).await;
    assert_eq!(served.get("/assets/nothing", &[]).await.0, 404);
    let after = peak(served.pid());
    assert!(after < before + 64, "{before} MiB to {after} MiB");
}

/// Each check of a password takes 19 MiB, and goes on after its client has gone away.
#[tokio::test]
async fn abandoned_logins_take_little_memory() {
    let (served, _folder) = dashboard(&[]);
    let before = peak(served.pid());
    let login = basic("vera", "wrong");
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\n{login}\r\n\r\n");
    for _ in 0..300 {
        let mut stream = TcpStream::connect(&served.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        // Closed while the server reads or checks.
        stream.shutdown().await.unwrap();
    }
    let waiting = async || {
        let mut stream = TcpStream::connect(&served.address).await.unwrap();
        let request = request.replace("host: a", "host: a\r\nconnection: close");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    for answer in join_all((0..100).map(|_| waiting())).await {
        let status = answer.split_whitespace().nth(1).unwrap();
        assert!(["401", "503"].contains(&status), "{answer}");
    }
    let after = peak(served.pid());
    assert!(after < before + 128, "{before} MiB to {after} MiB");
}
