//! The HTTP server of the probes and of the dashboard, with bounds on what clients can take.
//!
//! Invariant: clients that send nothing, send slowly, or do not read their answers hold a bounded number of connections
//! and a bounded amount of memory, and a new client is served although their connections are open. Not here: TLS, logins.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use outbox::core::shutdown::CancellationToken;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tower::Service as _;

/// Bytes of the header of a request. The cookies of a single sign-on may take half of it.
const HEADER_MAX: usize = 32 * 1024;

/// Bytes of the body of a request. The largest form of the dashboard has a few kilobytes.
const BODY_MAX: usize = 64 * 1024;

/// The pause after the operating system has refused a connection, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What clients can take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Connections. Beyond it a new connection takes the place of the connection that has been idle for the longest time.
    pub(super) connections: usize,
    /// The longest wait for the header of a request, for its body, and for the next request of a connection.
    pub(super) patience: Duration,
}

/// Serves the router until `stop` is cancelled and the open requests are answered.
///
/// # Cancellation
///
/// Dropping the future closes all connections.
pub(super) async fn serve(listener: TcpListener, router: Router, bounds: Bounds, stop: CancellationToken) {
    let mut open = Open::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                if open.has_room(bounds.connections) {
                    open.add(|activity| {
                        let served = Served {
                            router: router.clone(),
                            peer,
                            patience: bounds.patience,
                            activity,
                        };
                        served.connection(stream, stop.clone())
                    });
                }
            }
            // The client is gone already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted; idle connections are closed");
                open.close_idle();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while open.tasks.join_next().await.is_some() {}
}

/// Since when a connection has been idle; `None` while a request is being answered. A connection also counts as idle
/// while its client sends a request or reads an answer: a slow client must not keep others out.
#[derive(Debug, Clone)]
struct Activity(Arc<Mutex<Option<Instant>>>);

impl Activity {
    fn idle_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The open connections.
#[derive(Default)]
struct Open {
    tasks: JoinSet<()>,
    connections: Vec<(AbortHandle, Activity)>,
}

impl Open {
    /// Makes room for another connection. False if a request is being answered on each connection.
    fn has_room(&mut self, connections_max: usize) -> bool {
        while self.tasks.try_join_next().is_some() {}
        self.connections.retain(|(task, _)| !task.is_finished());
        if self.connections.len() < connections_max {
            return true;
        }
        let all = self.connections.iter().enumerate();
        let idle = all.filter_map(|(index, (_, activity))| Some(((*activity.idle_since())?, index)));
        let Some((_, longest)) = idle.min() else {
            return false;
        };
        self.connections.swap_remove(longest).0.abort();
        true
    }

    fn close_idle(&mut self) {
        self.connections.retain(|(task, activity)| {
            let is_idle = activity.idle_since().is_some();
            if is_idle {
                task.abort();
            }
            !is_idle
        });
    }

    fn add<F: Future<Output = ()> + Send + 'static>(&mut self, connection: impl FnOnce(Activity) -> F) {
        let activity = Activity(Arc::new(Mutex::new(Some(Instant::now()))));
        let task = self.tasks.spawn(connection(activity.clone()));
        self.connections.push((task, activity));
    }
}

/// What a connection is served with.
#[derive(Clone)]
struct Served {
    router: Router,
    peer: SocketAddr,
    patience: Duration,
    activity: Activity,
}

impl Served {
    async fn connection(self, stream: TcpStream, stop: CancellationToken) {
        // Without it, a short answer may wait for the client's acknowledgement.
        let _ = stream.set_nodelay(true);
        let patience = self.patience;
        let service = service_fn(move |request: Request<Incoming>| {
            let served = self.clone();
            async move { Ok::<_, Infallible>(served.answer(request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(patience)
            .max_buf_size(HEADER_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection has ended");
        }
    }

    /// The body, or the answer to a body that is too large or too slow.
    async fn body(&self, body: Incoming) -> Result<Bytes, (StatusCode, &'static str)> {
        let too_large = (StatusCode::PAYLOAD_TOO_LARGE, "the request is too large\n");
        if body.size_hint().lower() > BODY_MAX as u64 {
            return Err(too_large);
        }
        match tokio::time::timeout(self.patience, to_bytes(Body::new(body), BODY_MAX)).await {
            Ok(body) => body.map_err(|_| too_large),
            Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "the request took too long\n")),
        }
    }

    async fn answer(mut self, request: Request<Incoming>) -> Response {
        let (parts, body) = request.into_parts();
        let body = match self.body(body).await {
            Ok(body) => body,
            Err(refusal) => return refusal.into_response(),
        };
        let mut request = Request::from_parts(parts, Body::from(body));
        request.extensions_mut().insert(ConnectInfo(self.peer));
        *self.activity.idle_since() = None;
        // A client that goes away drops this future.
        let _idle = OnDrop(&self.activity);
        match self.router.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

struct OnDrop<'a>(&'a Activity);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        *self.0.idle_since() = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Semaphore;

    use super::*;

    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    struct Server {
        address: SocketAddr,
        /// Lets a request to `/slow` end.
        release: Arc<Semaphore>,
        /// Has a permit for each request to `/slow` that has begun.
        begun: Arc<Semaphore>,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    async fn server(connections: usize, patience: Duration) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (release, begun) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (waits, begins) = (release.clone(), begun.clone());
        let slow = get(async move || {
            begins.add_permits(1);
            waits.acquire().await.unwrap().forget();
            "slow"
        });
        let router = Router::new()
            .route("/", get("well"))
            .route("/", post(async |body: String| body))
            .route("/slow", slow);
        let stop = CancellationToken::new();
        let bounds = Bounds {
            connections,
            patience,
        };
        let task = tokio::spawn(serve(listener, router, bounds, stop.clone()));
        Server {
            address,
            release,
            begun,
            stop,
            task,
        }
    }

    impl Server {
        async fn send(&self, bytes: &[u8]) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            stream
        }
    }

    /// All that a connection receives until the server closes it.
    async fn received(mut stream: TcpStream) -> String {
        let mut answer = Vec::new();
        // A reset ends it as well.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    async fn answered(stream: &mut TcpStream, text: &str) {
        let mut answer = String::new();
        while !answer.ends_with(text) {
            let mut buffer = [0; 512];
            let length = stream.read(&mut buffer).await.unwrap();
            assert_ne!(length, 0, "{answer}");
            answer.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    }

    #[tokio::test]
    async fn idle_connections_make_room_oldest_first() {
        let server = server(2, Duration::from_secs(600)).await;
        let mut first = server.send(GET).await;
        answered(&mut first, "well").await;
        let mut second = server.send(GET).await;
        answered(&mut second, "well").await;
        let mut third = server.send(GET).await;
        answered(&mut third, "well").await;
        assert_eq!(received(first).await, "");
        second.write_all(GET).await.unwrap();
        answered(&mut second, "well").await;
    }

    #[tokio::test]
    async fn a_request_that_is_answered_keeps_its_connection() {
        let server = server(1, Duration::from_secs(600)).await;
        let mut slow = server.send(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
        server.begun.acquire().await.unwrap().forget();
        assert_eq!(received(server.send(GET).await).await, "");
        server.release.add_permits(1);
        answered(&mut slow, "slow").await;
        answered(&mut server.send(GET).await, "well").await;
    }

    #[tokio::test]
    async fn unfinished_requests_end_with_the_patience() {
        let server = server(8, Duration::from_millis(50)).await;
        for (unfinished, expected) in [
            ("", ""),
            ("GET / HTTP/1.1\r\nhost: a\r\n", ""),
            (
                "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf",
                "HTTP/1.1 408",
            ),
        ] {
            let answer = received(server.send(unfinished.as_bytes()).await).await;
            assert!(answer.starts_with(expected), "{unfinished}: {answer}");
            assert_eq!(answer.is_empty(), expected.is_empty(), "{unfinished}: {answer}");
        }
    }

    #[tokio::test]
    async fn large_requests_are_refused() {
        let server = server(8, Duration::from_secs(600)).await;
        let header = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "x".repeat(HEADER_MAX));
        let answer = received(server.send(header.as_bytes()).await).await;
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
        let length = BODY_MAX + 1;
        let body =
            format!("POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        let answer = received(server.send(body.as_bytes()).await).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }

    #[tokio::test]
    async fn a_stop_waits_for_open_requests_only() {
        let server = server(8, Duration::from_secs(600)).await;
        let mut idle = server.send(GET).await;
        answered(&mut idle, "well").await;
        let slow = server.send(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
        server.begun.acquire().await.unwrap().forget();
        server.stop.cancel();
        assert_eq!(received(idle).await, "");
        server.release.add_permits(1);
        assert!(received(slow).await.ends_with("slow"));
        server.task.await.unwrap();
    }
}
