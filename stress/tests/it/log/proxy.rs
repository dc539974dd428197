//! A TCP proxy in front of PostgreSQL. The proxy can stall all connections, silence existing
//! connections as a firewall does, and connect new clients to another server as after a failover.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone, Copy, Default)]
struct Rule {
    holds_back: bool,
    silent_below: usize,
    next: usize,
}

pub(super) struct Proxy {
    pub(super) url: String,
    rule: Arc<watch::Sender<Rule>>,
    server: Arc<watch::Sender<String>>,
}

impl Proxy {
    pub(super) async fn in_front_of(url: &str) -> Self {
        let (login, server, path) = parts(url);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let rule = Arc::new(watch::Sender::new(Rule::default()));
        let server = Arc::new(watch::Sender::new(server.to_owned()));
        let (shared, leads_to) = (rule.clone(), server.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut number = 0;
                shared.send_modify(|rule| {
                    number = rule.next;
                    rule.next += 1;
                });
                let server = leads_to.borrow().clone();
                tokio::spawn(pass(client, server, number, shared.subscribe()));
            }
        });
        Self {
            url: format!("{login}@{address}/{path}"),
            rule,
            server,
        }
    }

    pub(super) fn lead_to(&self, url: &str) {
        self.server.send_replace(parts(url).1.to_owned());
    }

    pub(super) fn hold_back(&self) {
        self.rule.send_modify(|rule| rule.holds_back = true);
    }

    pub(super) fn pass_on(&self) {
        self.rule.send_modify(|rule| rule.holds_back = false);
    }

    pub(super) fn silence(&self) {
        self.rule.send_modify(|rule| rule.silent_below = rule.next);
    }
}

fn parts(url: &str) -> (&str, &str, &str) {
    let (login, rest) = url.rsplit_once('@').unwrap();
    let (server, path) = rest.split_once('/').unwrap();
    (login, server, path)
}

async fn pass(client: TcpStream, server: String, number: usize, rule: watch::Receiver<Rule>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
    let (up, down) = (rule.clone(), rule);
    tokio::select! {
        () = copy(client_in, server_out, number, up) => {}
        () = copy(server_in, client_out, number, down) => {}
    }
}

async fn copy(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    number: usize,
    mut rule: watch::Receiver<Rule>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        // A silent connection waits forever, a stalled connection until it resumes.
        let passes = rule.wait_for(|rule| !rule.holds_back && number >= rule.silent_below);
        if passes.await.is_err() {
            return;
        }
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            _ = rule.changed() => continue,
        };
        let Ok(read @ 1..) = read else { return };
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
