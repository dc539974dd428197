//! The connection of a publisher, which can be dropped together with all queued messages.
//!
//! A client's task outlives its handles until its queue is sent. So a publisher runs its own
//! connection on its own thread. When the thread ends, queue and socket are dropped.
//!
//! Invariants: opening never fails and never blocks longer than [`FIRST_CONNECT`]. A closed
//! connection sends nothing more, except bytes in the operating system's buffers.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::{Client, ConnectOptions, ServerAddr, Statistics};
use tokio::sync::{OnceCell, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::connect::denials::Reports;

/// Wait of the first publishes for the connection. Later publishes fail at once until the
/// connection is open.
const FIRST_CONNECT: Duration = Duration::from_secs(2);

const CLOSE: Duration = Duration::from_secs(1);

/// Bound on asking the given client for its servers. A disconnected client answers only after
/// reconnecting.
const ASK_SERVERS: Duration = Duration::from_millis(100);

pub(crate) struct Origin {
    pub(crate) servers: Vec<ServerAddr>,
    pub(crate) options: ConnectOptions,
    pub(crate) reports: Arc<Reports>,
}

/// Clients of `connect` in use. All clones of a client share its statistics, so the address of the
/// statistics identifies the client.
static ORIGINS: Mutex<Vec<(Weak<Statistics>, Arc<Origin>)>> = Mutex::new(Vec::new());

impl Origin {
    pub(crate) fn remember(self, client: &Client) {
        let mut origins = ORIGINS.lock().unwrap_or_else(PoisonError::into_inner);
        origins.retain(|(client, _)| client.strong_count() > 0);
        origins.push((Arc::downgrade(&client.statistics()), Arc::new(self)));
    }

    pub(crate) fn of(client: &Client) -> Option<Arc<Self>> {
        let statistics = Arc::as_ptr(&client.statistics());
        let origins = ORIGINS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = origins
            .iter()
            .filter(|(known, _)| std::ptr::eq(known.as_ptr(), statistics));
        found.next().map(|(_, origin)| origin.clone())
    }
}

pub(crate) struct Line {
    given: Client,
    origin: Option<Arc<Origin>>,
    ack_timeout: Duration,
    inflight_max: usize,
    servers: Mutex<Vec<ServerAddr>>,
    current: Mutex<Slot>,
}

pub(crate) type Slot = Arc<OnceCell<Live>>;

pub(crate) struct Live {
    pub(crate) client: Client,
    pub(crate) context: Context,
    thread: Option<Thread>,
    opened: Instant,
}

impl Line {
    pub(crate) fn new(given: Client, ack_timeout: Duration, inflight_max: usize) -> Self {
        let line = Self {
            origin: Origin::of(&given),
            given,
            ack_timeout,
            inflight_max,
            servers: Mutex::default(),
            current: Mutex::default(),
        };
        if line.origin.is_none() {
            *line.current() = Arc::new(OnceCell::new_with(Some(line.borrowed())));
        }
        line
    }

    pub(crate) fn given(&self) -> &Client {
        &self.given
    }

    pub(crate) fn reports(&self) -> Option<&Reports> {
        self.origin.as_deref().map(|origin| &*origin.reports)
    }

    pub(crate) fn slot(&self) -> Slot {
        self.current().clone()
    }

    /// Opens the connection, and waits up to [`FIRST_CONNECT`]. The caller must check the
    /// connection state afterwards.
    pub(crate) async fn open<'a>(&self, slot: &'a Slot) -> &'a Live {
        let live = slot
            .get_or_init(|| async {
                let Some(origin) = &self.origin else {
                    return self.borrowed();
                };
                let servers = self.servers(origin).await;
                match Thread::start(origin, servers, |client| self.context(client)).await {
                    Some((client, context, thread)) => Live {
                        client,
                        context,
                        thread: Some(thread),
                        opened: Instant::now(),
                    },
                    None => {
                        tracing::error!("cannot start a thread for the publisher's connection; using the shared connection");
                        self.borrowed()
                    }
                }
            })
            .await;
        if let (State::Pending, Some(reports)) = (live.client.connection_state(), self.reports()) {
            let mut changes = reports.watch();
            let connected = async {
                // The client reports a connection event before it changes its state.
                while live.client.connection_state() == State::Pending {
                    let _ = timeout(Duration::from_millis(20), changes.changed()).await;
                }
            };
            let _ = timeout_at(live.opened + FIRST_CONNECT, connected).await;
        }
        live
    }

    pub(crate) async fn renew(&self) {
        if self.origin.is_none() {
            // The program created this client, so the publisher can only request a reconnect. The
            // request waits while the client's queue is full.
            let _ = timeout(CLOSE, self.given.force_reconnect()).await;
            return;
        }
        let old = std::mem::take(&mut *self.current());
        match old.get() {
            Some(Live {
                thread: Some(thread), ..
            }) => thread.end().await,
            Some(_) => {
                let _ = timeout(CLOSE, self.given.force_reconnect()).await;
            }
            None => {}
        }
        self.open(&self.slot()).await;
    }

    async fn servers(&self, origin: &Origin) -> Vec<ServerAddr> {
        let pool = timeout(ASK_SERVERS, self.given.server_pool()).await;
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(Ok(pool)) = pool {
            *servers = pool.into_iter().map(|server| server.addr).collect();
        } else if servers.is_empty() {
            servers.clone_from(&origin.servers);
        }
        servers.clone()
    }

    fn borrowed(&self) -> Live {
        Live {
            client: self.given.clone(),
            context: self.context(self.given.clone()),
            thread: None,
            opened: Instant::now(),
        }
    }

    fn context(&self, client: Client) -> Context {
        ContextBuilder::new()
            .timeout(self.ack_timeout)
            .ack_timeout(self.ack_timeout)
            .max_ack_inflight(self.inflight_max)
            .build(client)
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Slot> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Thread {
    end: watch::Sender<bool>,
    ended: watch::Receiver<()>,
}

impl Thread {
    async fn start(
        origin: &Origin,
        servers: Vec<ServerAddr>,
        context: impl FnOnce(Client) -> Context,
    ) -> Option<(Client, Context, Self)> {
        let options = origin.options.clone();
        let (opened, opening) = oneshot::channel();
        let (end, mut ending) = watch::channel(false);
        let (ended_when_dropped, ended) = watch::channel(());
        let run = move || {
            let _ended = ended_when_dropped;
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async move {
                // The connection opens in the background.
                if let Ok(client) = options.retry_on_initial_connect().connect(servers).await
                    && opened.send((client, tokio::runtime::Handle::current())).is_ok()
                {
                    let _ = ending.wait_for(|end| *end).await;
                }
            });
            runtime.shutdown_background();
        };
        std::thread::Builder::new()
            .name("outbox-nats".to_owned())
            .spawn(run)
            .ok()?;
        let (client, runtime) = opening.await.ok()?;
        let _entered = runtime.enter();
        Some((client.clone(), context(client), Self { end, ended }))
    }

    /// Closes the connection and waits for its thread, so that nothing is sent afterwards.
    async fn end(&self) {
        self.end.send_replace(true);
        let mut ended = self.ended.clone();
        let _ = timeout(CLOSE, async { while ended.changed().await.is_ok() {} }).await;
    }
}
