//! Counts statements and sessions of the dashboard and of commands, through a proxy in front of
//! PostgreSQL.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use outbox::core::Fitness;
use outbox::testing::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::answer::logged_in;
use super::plant::{Planted, dead, failed};
use super::rights::READS;
use super::serve::Served;
use crate::place::Kind;

/// Pauses, backlog, waiting messages; relays, dead relays and partitions, each for counts and
/// rows.
const SAMPLE_MAX: u64 = 8;
/// Every ten seconds: consumers with their tables, and the log.
const LOOK_MAX: u64 = 2 + 4;

struct Counter {
    address: String,
    statements: Arc<AtomicU64>,
    /// Startup message of each session.
    sessions: Sessions,
}

type Sessions = Arc<Mutex<Vec<String>>>;

impl Counter {
    async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let statements = Arc::new(AtomicU64::new(0));
        let sessions = Sessions::default();
        let (counted, begun) = (statements.clone(), sessions.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                let ((client, to_client), (mut answers, to_server)) =
                    (client.into_split(), server.into_split());
                let (counted, begun) = (counted.clone(), begun.clone());
                tokio::spawn(async move { count(client, to_server, &counted, &begun).await });
                tokio::spawn(async move {
                    let mut to_client = to_client;
                    tokio::io::copy(&mut answers, &mut to_client).await
                });
            }
        });
        Self {
            address,
            statements,
            sessions,
        }
    }

    fn sessions(&self) -> Vec<String> {
        std::mem::take(&mut *self.sessions.lock().unwrap())
    }

    fn count(&self) -> u64 {
        self.statements.load(Ordering::SeqCst)
    }
}

/// Messages before the session start have no type. `E` and `Q` execute a statement.
async fn count(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    statements: &AtomicU64,
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
        // The driver pings with an empty statement.
        let is_ping = body.starts_with(b"/* SQLx ping */");
        if matches!(head.first(), Some(b'E' | b'Q')) && has_begun && !is_ping {
            statements.fetch_add(1, Ordering::SeqCst);
        }
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

async fn overview(served: &Served) -> String {
    let (status, page) = served.get("/", &[]).await;
    assert_eq!(status, 200, "{page}");
    page
}

/// Identifies the sample of a page.
fn read_at(page: &str) -> String {
    let (_, time) = page.split_once("Read at <time>").unwrap();
    time.split('<').next().unwrap().to_owned()
}

#[tokio::test]
async fn the_overview_costs_a_few_statements_however_many_people_look() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    planted.placed("1").await;
    planted.publish().await;
    planted.handle().await;
    let waiting = planted.placed("2").await;
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, waiting, failed()).await;
    let url = url::Url::parse(&planted.place.url).unwrap();
    let server = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
    let counter = Counter::before(server.clone()).await;
    let database = planted.place.url.replacen(&server, &counter.address, 1);
    assert_ne!(database, planted.place.url, "the address names host and port");
    let served = Served::start_over(&planted.place, &database, &[]);
    let mut known = HashSet::from([read_at(&overview(&served).await)]);
    let mut before = (1, counter.count());
    assert!(before.1 > 0, "statements are seen");
    let mut rounds = Vec::new();
    while rounds.len() < 6 {
        let mut now = before;
        eventually("the next sample", async || {
            // A busy machine may produce several samples.
            let overviews = (0..20).map(|_| overview(&served));
            for shown in futures_util::future::join_all(overviews).await {
                known.insert(read_at(&shown));
            }
            now = (known.len() as u64, counter.count());
            now.0 > before.0
        })
        .await;
        rounds.push((now.0 - before.0, now.1 - before.1));
        before = now;
    }
    let page = overview(&served).await;
    assert!(
        page.contains("<dt>Deferred</dt><dd>1</dd>"),
        "the statement for waiting messages is needed: {page}"
    );
    // Any sample may include a look at the stream.
    for (samples, statements) in &rounds {
        assert!(*statements <= (SAMPLE_MAX + LOOK_MAX) * samples, "{rounds:?}");
    }
    let without_look = |(samples, statements): &(u64, u64)| *statements <= SAMPLE_MAX * samples;
    assert!(rounds.iter().any(without_look), "{rounds:?}");
    drop(served);
    planted.close().await;
}

/// Commands block the runtime, so the proxy needs its own threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_only_read_have_sessions_that_cannot_write() {
    // Commands that need a session of the changing kind; a doctor uses ordinary sessions.
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
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, halting, dead(true)).await;
    planted.settle(&leases, backing_off, failed()).await;
    let url = url::Url::parse(&place.url).unwrap();
    let server = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
    let counter = Counter::before(server.clone()).await;
    let database = place.url.replacen(&server, &counter.address, 1);
    assert_ne!(database, place.url, "the address names host and port");
    let ask = |command: &str| {
        let answer = logged_in(place, &database, &place.nats, command);
        assert!(
            matches!(answer.code, Some(0 | 3 | 4 | 5)),
            "{command}: {answer:?}"
        );
        let sessions = counter.sessions();
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
