//! A TCP proxy in front of a server, which can be cut: an outage for one test, while others use the server.

use outbox_nats::async_nats::ServerAddr;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) struct Proxy {
    url: String,
    available: watch::Sender<bool>,
}

impl Proxy {
    /// Listens on a free port of the loopback interface until the test's runtime ends.
    pub(crate) async fn in_front_of(url: &str) -> Self {
        let server: ServerAddr = url.parse().unwrap();
        let upstream = (server.host().to_owned(), server.port());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut url = server.into_inner();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();

        let (available, watching) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut watching = watching.clone();
                let upstream = upstream.clone();
                // Accepted and closed at once while cut, as a server that is starting does.
                tokio::spawn(async move {
                    if !*watching.borrow() {
                        return;
                    }
                    let Ok(mut server) = TcpStream::connect(upstream).await else {
                        return;
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = watching.wait_for(|available| !available) => {}
                    }
                });
            }
        });
        Self {
            url: url.to_string(),
            available,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Breaks all connections and refuses new ones, or lets them through again.
    pub(crate) fn set_available(&self, available: bool) {
        self.available.send_replace(available);
    }
}
