//! Reads the startup messages of sessions, through a proxy in front of PostgreSQL.

use std::sync::{Arc, Mutex};

use outbox::core::RelayHealth;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::answer::logged_in;
use super::plant::{Planted, dead, failed};
use super::rights::READS;
use crate::place::Kind;

struct Proxy {
    address: String,
    sessions: Sessions,
}

type Sessions = Arc<Mutex<Vec<String>>>;

impl Proxy {
    async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let sessions = Sessions::default();
        let begun = sessions.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                let ((client, to_client), (mut answers, to_server)) =
                    (client.into_split(), server.into_split());
                let begun = begun.clone();
                tokio::spawn(async move { observe(client, to_server, &begun).await });
                tokio::spawn(async move {
                    let mut to_client = to_client;
                    tokio::io::copy(&mut answers, &mut to_client).await
                });
            }
        });
        Self { address, sessions }
    }

    fn sessions(&self) -> Vec<String> {
        std::mem::take(&mut *self.sessions.lock().unwrap())
    }
}

async fn observe(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    sessions: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    const SSL_REQUEST: u32 = 80_877_103;
    let mut has_begun = false;
    loop {
        let mut head = Vec::new();
        if has_begun {
            head.push(client.read_u8().await?);
        }
        let length = client.read_u32().await?;
        head.extend(length.to_be_bytes());
        let mut body = vec![0; length as usize - 4];
        client.read_exact(&mut body).await?;
        // The server answers a TLS request with one byte; the session starts with the next message.
        if !has_begun && !body.starts_with(&SSL_REQUEST.to_be_bytes()) {
            has_begun = true;
            let begin = String::from_utf8_lossy(&body).into_owned();
            sessions.lock().unwrap().push(begin);
        }
        server.write_all(&head).await?;
        server.write_all(&body).await?;
    }
}

/// Commands block the runtime, so the proxy needs its own threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_commands_use_read_only_sessions() {
    const OTHERS: [&str; 8] = [
        "doctor",
        "reconcile",
        "retry",
        "replay",
        "resume",
        "consumers pause",
        "dead-letters retry",
        "pause --aggregate-type",
    ];
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    planted.placed("0").await;
    planted.publish().await;
    planted.handle().await;
    let (halting, backing_off) = (planted.placed("1").await, planted.placed("2").await);
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&leases, halting, dead(true)).await;
    planted.settle(&leases, backing_off, failed()).await;
    let url = url::Url::parse(&place.url).unwrap();
    let server = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
    let proxy = Proxy::before(server.clone()).await;
    let database = place.url.replacen(&server, &proxy.address, 1);
    assert_ne!(database, place.url, "the address names host and port");
    let ask = |command: &str| {
        let answer = logged_in(place, &database, &place.nats, command);
        assert!(
            matches!(answer.code, Some(0 | 3 | 4 | 5)),
            "{command}: {answer:?}"
        );
        let sessions = proxy.sessions();
        assert!(!sessions.is_empty(), "{command} asks the database");
        sessions
    };
    let cannot_write = |session: &String| session.contains("default_transaction_read_only=on");
    let is_other = |command: &String| OTHERS.iter().any(|other| command.starts_with(other));
    let reads = READS.map(str::to_owned).into_iter().chain([
        format!("show {halting}"),
        format!("dead-letters show {}", uuid::Uuid::nil()),
    ]);
    for command in reads.filter(|command| !is_other(command)) {
        let sessions = ask(&command);
        assert!(sessions.iter().all(cannot_write), "{command}: {sessions:?}");
    }
    let sessions = ask("retry --skip --all");
    assert!(!sessions.iter().any(cannot_write), "{sessions:?}");
    planted.close().await;
}
