//! A TCP proxy that can cut connections or hold back client bytes.

use std::sync::Arc;

use outbox_nats::async_nats::ServerAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;

const RECEIVE_BUFFER: u32 = 16 * 1024;

pub(crate) struct Proxy {
    url: String,
    control: Arc<Control>,
}

struct Control {
    available: watch::Sender<bool>,
    held_below: watch::Sender<usize>,
    accepted: watch::Sender<usize>,
    drained: watch::Sender<usize>,
}

impl Proxy {
    pub(crate) async fn in_front_of(url: &str) -> Self {
        let server: ServerAddr = url.parse().unwrap();
        let upstream = (server.host().to_owned(), server.port());
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(64).unwrap();
        let mut url = server.into_inner();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();

        let control = Arc::new(Control {
            available: watch::Sender::new(true),
            held_below: watch::Sender::new(0),
            accepted: watch::Sender::new(0),
            drained: watch::Sender::new(0),
        });
        let shared = control.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = *shared.accepted.borrow();
                shared.accepted.send_modify(|accepted| *accepted += 1);
                tokio::spawn(pass(client, upstream.clone(), number, shared.clone()));
            }
        });
        Self {
            url: url.to_string(),
            control,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn set_available(&self, available: bool) {
        self.control.available.send_replace(available);
    }

    /// Stops all traffic of open connections, as in a stalled network. New connections are not
    /// affected.
    pub(crate) fn hold(&self) {
        self.control
            .held_below
            .send_replace(*self.control.accepted.borrow());
    }

    pub(crate) fn release(&self) {
        self.control.held_below.send_replace(0);
    }

    /// Waits until this many clients have closed their connections and all bytes are passed on.
    pub(crate) async fn drained(&self, connections: usize) {
        let mut drained = self.control.drained.subscribe();
        let drained = drained.wait_for(|drained| *drained >= connections);
        tokio::time::timeout(crate::environment::SOON, drained)
            .await
            .expect("closed connections")
            .unwrap();
    }
}

async fn pass(client: TcpStream, upstream: (String, u16), number: usize, control: Arc<Control>) {
    let mut available = control.available.subscribe();
    // While cut, the proxy accepts and closes a connection at once, as a starting server.
    if !*available.borrow() {
        return;
    }
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = both(from_client, to_client, from_server, to_server, number, &control) => {}
        _ = available.wait_for(|available| !available) => {}
    }
}

async fn both(
    mut from_client: OwnedReadHalf,
    mut to_client: OwnedWriteHalf,
    mut from_server: OwnedReadHalf,
    mut to_server: OwnedWriteHalf,
    number: usize,
    control: &Control,
) {
    let up = async {
        let mut held_below = control.held_below.subscribe();
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read) = from_client.read(&mut buffer).await {
            // The proxy also holds bytes read just before the hold.
            let _ = held_below.wait_for(|held_below| number >= *held_below).await;
            if read == 0 || to_server.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
        let _ = to_server.shutdown().await;
    };
    let down = async {
        let _ = copy(&mut from_server, &mut to_client).await;
        let _ = to_client.shutdown().await;
    };
    tokio::join!(up, down);
    control.drained.send_modify(|drained| *drained += 1);
}
