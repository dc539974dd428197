//! A cluster of three nats-servers for a single test, of the current version only.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join;
use outbox_core::MessageId;
use outbox_nats::async_nats::jetstream::context::{Context, ContextBuilder};
use outbox_nats::async_nats::jetstream::stream::Config;
use outbox_nats::connect_options;
use outbox_testing::{backend_url, eventually, free_port};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::environment::{Nats, PLACED, SHIPPED, answered, connected};
use crate::private_server::PrivateServer;

const BINARY: &str = "OUTBOX_TEST_NATS_CLUSTER_BIN";

const NAMES: [&str; 3] = ["n1", "n2", "n3"];

static ROOM: Semaphore = Semaphore::const_new(2);

/// A cluster of three nodes, so that two nodes are a majority. All nodes stop on drop.
pub(crate) struct PrivateCluster {
    nodes: Vec<PrivateServer>,
    _room: SemaphorePermit<'static>,
}

impl PrivateCluster {
    pub(crate) async fn start() -> Option<Self> {
        let binary = PathBuf::from(backend_url(BINARY)?);
        let room = ROOM.acquire().await.unwrap();
        let ports: Vec<u16> = std::iter::repeat_with(free_port).take(2 * NAMES.len()).collect();
        let (clients, routes) = ports.split_at(NAMES.len());
        let routes: Vec<String> = routes
            .iter()
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .collect();
        let all = routes.join(",");
        let node = |n: usize| {
            let route = &routes[n];
            let arguments = [
                "-n",
                NAMES[n],
                "--cluster_name",
                "test",
                "--cluster",
                route,
                "--routes",
                &all,
            ];
            PrivateServer::stopped(binary.clone(), clients[n], &arguments)
        };
        let mut cluster = Self {
            nodes: (0..NAMES.len()).map(node).collect(),
            _room: room,
        };
        cluster.restart().await;
        Some(cluster)
    }

    pub(crate) async fn nats(&self) -> Nats {
        let urls: Vec<String> = self.nodes.iter().map(PrivateServer::url).collect();
        Nats::with(connected(urls.join(","), connect_options()).await)
    }

    pub(crate) async fn nats_at(&self, name: &str) -> Nats {
        Nats::at(&self.nodes[index(name)].url()).await
    }

    pub(crate) fn node(&mut self, name: &str) -> &mut PrivateServer {
        &mut self.nodes[index(name)]
    }

    pub(crate) async fn restart(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| !node.runs()) {
            node.restart().await;
        }
        let context = self.nats().await.impatient();
        let probe = Config {
            name: format!("probe-{}", MessageId::fresh()),
            num_replicas: NAMES.len(),
            ..Config::default()
        };
        eventually("a cluster", || async {
            context.create_stream(&probe).await.is_ok()
        })
        .await;
    }
}

fn index(name: &str) -> usize {
    NAMES.iter().position(|known| *known == name).unwrap()
}

pub(crate) fn others(name: &str) -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().filter(move |other| *other != name)
}

impl Nats {
    pub(crate) async fn provision_replicated(&self) {
        let spec = self.stream().with_replicas(NAMES.len());
        answered(async || spec.provision_for(&self.client, [&PLACED, &SHIPPED]).await).await;
    }

    pub(crate) async fn leader(&self, of: &str) -> String {
        let mut leader = None;
        eventually("a leader", async || {
            let info = self.request("INFO", of).await.unwrap_or_default();
            leader = info["cluster"]["leader"].as_str().map(str::to_owned);
            leader.is_some()
        })
        .await;
        leader.unwrap()
    }

    /// Makes the leader of `<stream>` or `<stream>.<consumer>` step down, and waits for another
    /// leader.
    pub(crate) async fn step_down(&self, of: &str) {
        let before = self.leader(of).await;
        // The request is repeated, because its answer may be lost and the same node may be elected
        // again.
        eventually("another leader", async || {
            self.leader(of).await != before || {
                self.request("LEADER.STEPDOWN", of).await;
                false
            }
        })
        .await;
    }

    pub(crate) async fn during_step_down<T>(&self, of: &str, work: impl Future<Output = T>) -> T {
        join(work, self.step_down(of)).await.0
    }

    pub(crate) async fn until_stored(&self, count: u64) {
        eventually("progress", async || {
            let info = self.request("INFO", &self.name).await.unwrap_or_default();
            info["state"]["last_seq"].as_u64() >= Some(count)
        })
        .await;
    }

    fn impatient(&self) -> Context {
        let timeout = Duration::from_millis(500);
        ContextBuilder::new().timeout(timeout).build(self.client.clone())
    }

    pub(crate) async fn request(&self, what: &str, of: &str) -> Option<Value> {
        let kind = if of.contains('.') { "CONSUMER" } else { "STREAM" };
        let subject = format!("{kind}.{what}.{of}");
        let answer: Value = self.impatient().request(subject, &json!({})).await.ok()?;
        answer["error"].is_null().then_some(answer)
    }
}
