//! A shop behind the layer, served on its own socket, and a client.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use axum::{Json, Router};
use outbox_inbox::http::{Committed, IdempotencyLayer, RequestTx, Scope};
use outbox_sea_orm::record;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::support::{OrderBooked, SOON, TestDb, as_a_library};

pub(super) const BYTES: &[u8] = b"\xff\x00order ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Created,
    Status(u16),
    Committed(u16),
    Bytes(usize),
    Panic,
    Hang,
    Gate,
    Swallow,
    Undo,
    Kill,
    Orphan,
    Keep,
    Library,
}

#[derive(Debug, Clone)]
pub(super) struct Shop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    steps: Mutex<VecDeque<Step>>,
    runs: AtomicU32,
    kept: Mutex<Option<RequestTx>>,
    running: Semaphore,
    gate: Semaphore,
    ended: Semaphore,
}

impl Shop {
    pub(super) fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self(Arc::new(Inner {
            steps: Mutex::new(steps.into_iter().collect()),
            runs: AtomicU32::new(0),
            kept: Mutex::default(),
            running: Semaphore::new(0),
            gate: Semaphore::new(0),
            ended: Semaphore::new(0),
        }))
    }

    pub(super) fn runs(&self) -> u32 {
        self.0.runs.load(Ordering::SeqCst)
    }

    pub(super) async fn started(&self) {
        soon(self.0.running.acquire()).await.unwrap().forget();
    }

    pub(super) async fn ended(&self) {
        soon(self.0.ended.acquire()).await.unwrap().forget();
    }

    pub(super) fn release(&self) {
        self.0.gate.add_permits(1);
    }

    pub(super) fn let_go(&self) {
        self.0.kept.lock().unwrap().take();
    }

    /// The scope comes from two headers, which a real service must not trust.
    pub(super) fn layer(db: &DatabaseConnection) -> IdempotencyLayer {
        IdempotencyLayer::new(db.clone(), |request| {
            let part = |name| request.headers.get(name).and_then(|value| value.to_str().ok());
            Some(Scope::new(part("x-tenant")?, part("x-user")?))
        })
    }

    pub(super) async fn serve(&self, layer: IdempotencyLayer) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let nested = Router::new().route("/orders/{id}", post(order));
        let app = Router::new()
            .route("/orders/{id}", any(order))
            .route("/checked/{id}", post(checked).layer(from_fn(authorize)))
            .layer(DefaultBodyLimit::max(2_000))
            .route("/plain", any(plain))
            .nest("/twice", nested.clone().route_layer(layer.clone()))
            .route_layer(layer.clone())
            .nest("/a", nested.route_layer(layer))
            .layer(from_fn_with_state(self.clone(), watch))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Client { address }
    }
}

async fn watch(State(shop): State<Shop>, request: Request, next: Next) -> Response {
    struct Guard(Shop);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.0.ended.add_permits(1);
        }
    }
    let _guard = Guard(shop);
    next.run(request).await
}

async fn plain() -> &'static str {
    "plain"
}

async fn order(State(shop): State<Shop>, Path(id): Path<u64>, tx: RequestTx, body: Bytes) -> Response {
    let step = shop.0.steps.lock().unwrap().pop_front().unwrap_or(Step::Created);
    let run = shop.0.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let sql = format!("INSERT INTO effects (consumer, order_id) VALUES ('http', {id})");
    tx.execute_unprepared(&sql).await.unwrap();
    record(&tx, [OrderBooked { order_id: id }]).await.unwrap();
    shop.0.running.add_permits(1);
    let (mut status, mut content) = (
        StatusCode::CREATED,
        [BYTES, &body, run.to_string().as_bytes()].concat(),
    );
    match step {
        Step::Created => {}
        Step::Status(204) => (status, content) = (StatusCode::NO_CONTENT, Vec::new()),
        Step::Status(code) | Step::Committed(code) => status = StatusCode::from_u16(code).unwrap(),
        Step::Bytes(bytes) => content = vec![b'x'; bytes],
        Step::Panic => panic!("order {id} panics"),
        Step::Hang => std::future::pending().await,
        Step::Gate => shop.0.gate.acquire().await.unwrap().forget(),
        Step::Swallow => drop(
            tx.execute_unprepared("INSERT INTO no_such_table VALUES (1)")
                .await,
        ),
        Step::Undo => drop(tx.execute_unprepared("ROLLBACK").await.unwrap()),
        Step::Kill => {
            let sql = match tx.get_database_backend() {
                DbBackend::Postgres => "SELECT pg_terminate_backend(pg_backend_pid())",
                _ => "KILL CONNECTION_ID()",
            };
            tx.execute_unprepared(sql).await.unwrap_err();
        }
        Step::Orphan => drop(
            tx.execute_unprepared("INSERT INTO children VALUES (1)")
                .await
                .unwrap(),
        ),
        Step::Library => assert_eq!(as_a_library(&tx, id).await.unwrap(), 1),
        Step::Keep => *shop.0.kept.lock().unwrap() = Some(tx.clone()),
    }
    let mut secret = HeaderValue::from_static("secret");
    secret.set_sensitive(true);
    let response = Response::builder()
        .status(status)
        .header("location", format!("/orders/{id}"))
        .header("link", "<a>; rel=a")
        .header("link", "<b>; rel=b")
        .header("x-bytes", HeaderValue::from_bytes(b"caf\xe9 \xff").unwrap())
        .header("set-cookie", "session=secret")
        .header("x-token", secret)
        .header("x-receipt", "secret")
        .body(Body::from(content))
        .unwrap();
    match step {
        Step::Committed(_) => Committed(response).into_response(),
        _ => response,
    }
}

#[derive(Deserialize)]
struct Order {
    units: u32,
}

async fn checked(
    State(shop): State<Shop>,
    Path(id): Path<u64>,
    tx: RequestTx,
    Json(asked): Json<Order>,
) -> Response {
    order(State(shop), Path(id), tx, asked.units.to_string().into()).await
}

async fn authorize(request: Request, next: Next) -> Response {
    let refusal = request.headers().get("x-refuse");
    match refusal.and_then(|code| code.to_str().ok()?.parse::<u16>().ok()) {
        Some(code) => StatusCode::from_u16(code).unwrap().into_response(),
        None => next.run(request).await,
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it happens soon")
}

#[derive(Debug, Clone)]
pub(super) struct Client {
    address: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&[u8]> {
        let mut found = self.headers.iter().filter(|header| header.0 == name);
        found.next().map(|header| &*header.1)
    }

    pub(super) fn is_replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some(b"true")
    }

    #[track_caller]
    pub(super) fn assert_problem(&self, status: u16) {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(
            self.header("content-type"),
            Some(&b"application/problem+json"[..])
        );
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], status);
        assert!(
            problem["title"].is_string() && problem["detail"].is_string(),
            "{problem}"
        );
        assert_eq!(self.header("retry-after").is_some(), matches!(status, 409 | 503));
        assert!(!self.is_replayed());
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub(super) async fn send(&self, what: &str, headers: &[&str], body: &[u8]) -> Answer {
        let mut connection = self.begin(what, headers, body).await;
        let mut bytes = Vec::new();
        soon(connection.read_to_end(&mut bytes)).await.unwrap();
        parse(&bytes)
    }

    pub(super) async fn begin(&self, what: &str, headers: &[&str], body: &[u8]) -> TcpStream {
        let mut connection = TcpStream::connect(&self.address).await.unwrap();
        let mut head = format!("{what} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n");
        if !headers.contains(&"transfer-encoding: chunked") {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        for line in headers {
            head.push_str(&format!("{line}\r\n"));
        }
        head.push_str("\r\n");
        connection
            .write_all(&[head.as_bytes(), body].concat())
            .await
            .unwrap();
        connection
    }

    pub(super) async fn order(&self, id: u64, key: &str) -> Answer {
        self.send(&format!("POST /orders/{id}"), &by_ann(key), b"tea")
            .await
    }
}

pub(super) fn by_ann(key: &str) -> [&str; 3] {
    let line: &'static str = Box::leak(format!("idempotency-key: {key}").into_boxed_str());
    [line, "x-tenant: acme", "x-user: ann"]
}

fn parse(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, body) = bytes.split_at(end.unwrap_or_else(|| panic!("no answer: {bytes:?}")) + 4);
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let status = std::str::from_utf8(lines.next().unwrap()).unwrap();
    let headers = lines.filter(|line| !line.is_empty()).map(|line| {
        let colon = line.iter().position(|byte| *byte == b':').unwrap();
        let name = String::from_utf8(line[..colon].to_ascii_lowercase()).unwrap();
        (name, line[colon + 1..].trim_ascii().to_vec())
    });
    let headers: Vec<_> = headers.filter(|(name, _)| name != "date").collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.map_or(0, |(_, value)| {
        std::str::from_utf8(value).unwrap().parse().unwrap()
    });
    assert_eq!(body.len(), length, "the answer is complete");
    Answer {
        status: status.split(' ').nth(1).unwrap().parse().unwrap(),
        headers,
        body: body.to_vec(),
    }
}

pub(super) async fn books(test: &TestDb, id: u64) -> (i64, i64, i64) {
    (
        test.effects("http", id).await,
        test.int(&format!(
            "SELECT count(*) FROM outbox_messages WHERE aggregate_id = '{id}'"
        ))
        .await,
        test.int("SELECT count(*) FROM inbox_requests").await,
    )
}
