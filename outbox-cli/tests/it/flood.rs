//! Floods of connections and headers: the HTTP server stays within its bounds and answers other
//! clients.
#![cfg(target_os = "linux")]

use std::process::Command;

use futures_util::future::join_all;
use outbox::testing::eventually;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::operate::serve::Served;
use crate::place::Program;

const SERVERS: [(&str, &str); 2] = [
    ("DATABASE_URL", "sqlite::memory:"),
    ("NATS_URL", "nats://127.0.0.1:1"),
];

const IDLE: usize = 1_100;

fn limited() -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "ulimit -n 1024 && exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_outbox"));
    command
}

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

async fn connections(address: &str, count: usize) -> Vec<TcpStream> {
    let all = join_all((0..count).map(|_| TcpStream::connect(address))).await;
    all.into_iter().map(Result::unwrap).collect()
}

async fn unfinished_headers(address: &str) {
    let header = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "x".repeat(400_000));
    let send = async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(header.as_bytes()).await;
        stream
    };
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
async fn unfinished_headers_of_probes_take_little_memory() {
    let (program, address) = relay().await;
    let before = peak(program.pid());
    unfinished_headers(&address).await;
    assert_eq!(program.get("/livez").await.0, 200);
    let after = peak(program.pid());
    assert!(after < before + 64, "{before} MiB to {after} MiB");
}

#[tokio::test]
async fn idle_connections_do_not_silence_the_dashboard() {
    raise_own_limit();
    let mut command = limited();
    command
        .args(["serve", "--address", "127.0.0.1:0"])
        .env_clear()
        .envs(SERVERS);
    let served = Served::launch(command);
    let open = connections(&served.address, IDLE).await;
    assert_eq!(served.get("/assets/nothing", &[]).await.0, 404);
    drop(open);
}
