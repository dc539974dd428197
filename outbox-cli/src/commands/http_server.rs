//! HTTP server of the probes and the dashboard.
//!
//! Invariant: idle or slow clients hold a bounded number of connections and bounded memory, and
//! never block new clients. The server has no TLS and no login.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use outbox::core::shutdown::CancellationToken;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tower::Service as _;

/// Maximum size of request headers in bytes. Single sign-on cookies may need half of it.
const HEADER_MAX: usize = 32 * 1024;

/// Pause after the operating system refused a connection, such as without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Maximum number of connections. A further connection closes the oldest one.
    pub(super) connections: usize,
    /// Timeout for a request header, also on an idle connection.
    pub(super) patience: Duration,
}

/// Serves until `stop` is cancelled and open requests are answered. Request bodies are never
/// read.
///
/// # Cancellation
///
/// Dropping the future closes all connections.
pub(super) async fn serve(listener: TcpListener, router: Router, bounds: Bounds, stop: CancellationToken) {
    let mut tasks = JoinSet::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                while tasks.try_join_next().is_some() {}
                open.retain(|task| !task.is_finished());
                if open.len() >= bounds.connections
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                let connection = connection(stream, router.clone(), bounds.patience, stop.clone());
                open.push_back(tasks.spawn(connection));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted; open connections are closed");
                tasks.abort_all();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, router: Router, patience: Duration, stop: CancellationToken) {
    // With Nagle's algorithm, a short response may wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| router.clone().call(request));
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Semaphore;

    use super::*;

    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    struct Server {
        address: SocketAddr,
        release: Arc<Semaphore>,
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
        let router = Router::new().route("/", get("well")).route("/slow", slow);
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

    async fn received(mut stream: TcpStream) -> String {
        let mut answer = Vec::new();
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
    async fn new_connection_closes_the_oldest() {
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
    async fn unfinished_requests_time_out() {
        let server = server(8, Duration::from_millis(50)).await;
        for unfinished in ["", "GET / HTTP/1.1\r\nhost: a\r\n"] {
            assert_eq!(received(server.send(unfinished.as_bytes()).await).await, "");
        }
    }

    #[tokio::test]
    async fn a_large_header_is_refused() {
        let server = server(8, Duration::from_secs(600)).await;
        let header = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "x".repeat(HEADER_MAX));
        let answer = received(server.send(header.as_bytes()).await).await;
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
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
