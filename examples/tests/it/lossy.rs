//! A TCP proxy in front of nats-server that drops a consumer's acknowledgements and forwards
//! everything else in order. The consumer cannot detect the loss.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Lossy {
    address: SocketAddr,
    lost: Arc<AtomicUsize>,
}

impl Lossy {
    pub(crate) async fn in_front_of(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let lost = Arc::<AtomicUsize>::default();
        let counter = lost.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server.clone(), counter.clone()));
            }
        });
        Self { address, lost }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    pub(crate) fn lost(&self) -> usize {
        self.lost.load(Ordering::SeqCst)
    }
}

async fn pass(client: TcpStream, server: String, lost: Arc<AtomicUsize>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    let (_, _) = tokio::join!(
        filtered(from_client, to_server, &lost),
        copy(&mut from_server, &mut to_client)
    );
}

async fn filtered(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, lost: &AtomicUsize) {
    let (mut received, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        received.extend_from_slice(&buffer[..read]);
        while let Some(frame) = next_frame(&mut received) {
            let is_lost = frame.starts_with(b"PUB $JS.ACK.") && frame.ends_with(b"\r\n+ACK\r\n");
            lost.fetch_add(usize::from(is_lost), Ordering::SeqCst);
            if !is_lost && to.write_all(&frame).await.is_err() {
                return;
            }
        }
    }
    let _ = to.shutdown().await;
}

fn next_frame(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let line = received.windows(2).position(|two| two == b"\r\n")? + 2;
    let text = String::from_utf8_lossy(&received[..line]).into_owned();
    let mut words = text.split_ascii_whitespace();
    let payload = match words.next() {
        Some("PUB" | "HPUB") => words.next_back().unwrap().parse::<usize>().unwrap() + 2,
        _ => 0,
    };
    let end = line + payload;
    (received.len() >= end).then(|| received.drain(..end).collect())
}
