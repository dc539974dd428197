//! A TCP proxy for a database, which can silence connections and hold back commits and answers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const PING: usize = 5;

pub(crate) struct Proxy {
    url: String,
    control: Arc<Control>,
}

struct Control {
    to_silence: AtomicUsize,
    all_silent: AtomicBool,
    silenced: watch::Sender<usize>,
    closed: watch::Sender<usize>,
    received: AtomicUsize,
    commit: Mutex<Option<Commit>>,
}

pub(crate) enum Commit {
    LoseAnswer,
    Answer(Vec<u8>),
}

impl Proxy {
    pub(crate) async fn in_front_of(url: &str) -> Self {
        let (login, rest) = url.rsplit_once('@').expect("a URL with a user");
        let (server, path) = rest.split_once('/').expect("a URL with a database");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let control = Arc::new(Control {
            to_silence: AtomicUsize::new(0),
            all_silent: AtomicBool::new(false),
            silenced: watch::Sender::new(0),
            closed: watch::Sender::new(0),
            received: AtomicUsize::new(0),
            commit: Mutex::new(None),
        });
        let (shared, server) = (control.clone(), server.to_owned());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server.clone(), shared.clone()));
            }
        });
        Self {
            url: format!("{login}@{address}/{path}"),
            control,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn received(&self) -> usize {
        self.control.received.load(Ordering::SeqCst)
    }

    pub(crate) fn silence(&self, connections: usize) {
        self.control.to_silence.fetch_add(connections, Ordering::SeqCst);
    }

    pub(crate) fn on_commit(&self, commit: Commit) {
        *self.control.commit.lock().unwrap() = Some(commit);
    }

    pub(crate) fn silence_all(&self) {
        self.control.all_silent.store(true, Ordering::SeqCst);
    }

    pub(crate) fn speak(&self) {
        self.control.all_silent.store(false, Ordering::SeqCst);
    }

    pub(crate) async fn silenced(&self, connections: usize) {
        reached(&self.control.silenced, connections, "silent connections").await;
    }

    pub(crate) async fn closed(&self, connections: usize) {
        reached(&self.control.closed, connections, "closed connections").await;
    }
}

async fn reached(counter: &watch::Sender<usize>, count: usize, what: &str) {
    let mut counter = counter.subscribe();
    let reached = counter.wait_for(|counted| *counted >= count);
    let bound = Duration::from_secs(60);
    if tokio::time::timeout(bound, reached).await.is_err() {
        panic!("{count} {what}");
    }
}

impl Control {
    fn commit_in(&self, sent: &[u8]) -> Option<Commit> {
        let is_commit = sent.windows(6).any(|bytes| bytes == b"COMMIT");
        self.commit.lock().unwrap().take_if(|_| is_commit)
    }

    fn falls_silent(&self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(1);
        let is_next = || {
            self.to_silence
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                .is_ok()
        };
        self.all_silent.load(Ordering::SeqCst) || (bytes > PING && is_next())
    }
}

async fn pass(mut client: TcpStream, server: String, control: Arc<Control>) {
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut up, mut down) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(read @ 1..) = read else { return };
                let is_silent = control.falls_silent(read);
                let commit = control.commit_in(&up[..read]);
                if let Some(Commit::Answer(answer)) = &commit {
                    if client.write_all(answer).await.is_err() {
                        return;
                    }
                    continue;
                }
                if server.write_all(&up[..read]).await.is_err() {
                    return;
                }
                if commit.is_some() {
                    let _ = server.read(&mut down).await;
                    return;
                }
                if is_silent {
                    break;
                }
            }
            read = server.read(&mut down) => {
                let Ok(read @ 1..) = read else { return };
                control.received.fetch_add(read, Ordering::SeqCst);
                if client.write_all(&down[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
    control.silenced.send_modify(|silenced| *silenced += 1);
    while let Ok(1..) = client.read(&mut up).await {}
    control.closed.send_modify(|closed| *closed += 1);
}
