//! A TCP proxy in front of nats-server that loses acknowledgements: the server's of publishes, or a consumer's of deliveries.
//!
//! Invariant: everything else passes whole and in its order. So whoever loses an acknowledgement here has been heard, and is not told so.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Lossy {
    address: SocketAddr,
    control: Arc<Control>,
}

#[derive(Default)]
struct Control {
    loses_of_publishes: AtomicBool,
    loses_of_deliveries: AtomicBool,
    lost: AtomicUsize,
    /// How often each `Nats-Msg-Id` was published.
    published: Mutex<BTreeMap<String, usize>>,
}

impl Lossy {
    /// Listens on a free port of the loopback interface until the test's runtime ends.
    pub(crate) async fn in_front_of(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let control = Arc::<Control>::default();
        let shared = control.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server.clone(), shared.clone()));
            }
        });
        Self { address, control }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Keeps the server's acknowledgements of publishes back from the clients, or passes them on again. What was kept back is lost.
    pub(crate) fn lose_of_publishes(&self, lose: bool) {
        self.control.loses_of_publishes.store(lose, Ordering::SeqCst);
    }

    /// The same with the acknowledgements of deliveries that clients send.
    pub(crate) fn lose_of_deliveries(&self, lose: bool) {
        self.control.loses_of_deliveries.store(lose, Ordering::SeqCst);
    }

    /// How many acknowledgements were lost.
    pub(crate) fn lost(&self) -> usize {
        self.control.lost.load(Ordering::SeqCst)
    }

    /// How often each message was published, by its `Nats-Msg-Id`.
    pub(crate) fn published(&self) -> BTreeMap<String, usize> {
        self.control.published.lock().unwrap().clone()
    }
}

impl Control {
    /// Whether a frame from a client may pass.
    fn passes_up(&self, frame: &[u8]) -> bool {
        let text = String::from_utf8_lossy(frame);
        let ids = text.lines().filter_map(|line| line.strip_prefix("Nats-Msg-Id:"));
        for id in ids {
            *self
                .published
                .lock()
                .unwrap()
                .entry(id.trim().to_owned())
                .or_default() += 1;
        }
        let is_acknowledgement = text.starts_with("PUB $JS.ACK.") && text.ends_with("\r\n+ACK\r\n");
        !self.loses(is_acknowledgement, &self.loses_of_deliveries)
    }

    /// Whether a frame from the server may pass.
    fn passes_down(&self, frame: &[u8]) -> bool {
        // Other answers of JetStream begin with their type or with an error.
        let is_acknowledgement = String::from_utf8_lossy(frame).contains("\r\n{\"stream\":");
        !self.loses(is_acknowledgement, &self.loses_of_publishes)
    }

    fn loses(&self, is_acknowledgement: bool, wanted: &AtomicBool) -> bool {
        let loses = is_acknowledgement && wanted.load(Ordering::SeqCst);
        self.lost.fetch_add(usize::from(loses), Ordering::SeqCst);
        loses
    }
}

async fn pass(client: TcpStream, server: String, control: Arc<Control>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        filtered(from_client, to_server, |frame| control.passes_up(frame)),
        filtered(from_server, to_client, |frame| control.passes_down(frame)),
    );
}

async fn filtered(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, passes: impl Fn(&[u8]) -> bool) {
    let (mut received, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        received.extend_from_slice(&buffer[..read]);
        while let Some(frame) = next_frame(&mut received) {
            if passes(&frame) && to.write_all(&frame).await.is_err() {
                return;
            }
        }
    }
    let _ = to.shutdown().await;
}

/// Takes the first whole frame of the protocol: a line, and the payload that it announces.
fn next_frame(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let line = received.windows(2).position(|two| two == b"\r\n")? + 2;
    let payload = announced(&String::from_utf8_lossy(&received[..line]));
    let end = line + payload;
    (received.len() >= end).then(|| received.drain(..end).collect())
}

/// The bytes of the payload that a line announces.
fn announced(line: &str) -> usize {
    let mut words = line.split_ascii_whitespace();
    match words.next() {
        Some("PUB" | "HPUB" | "MSG" | "HMSG") => words.next_back().unwrap().parse::<usize>().unwrap() + 2,
        _ => 0,
    }
}
