//! The servers of a run. The run kills its own servers, but not servers given by URL.

use std::time::Duration;

use outbox_test_servers::Server;
use serde::Serialize;

use super::Options;
use crate::Result;

/// Settings of the PostgreSQL server that the run starts. A paused reader loses its session after 2
/// s, so that another relay reads the log.
const POSTGRES: [&str; 4] = [
    "wal_level=logical",
    "max_replication_slots=10",
    "max_wal_senders=10",
    "wal_sender_timeout=2s",
];

const AWAY_MAX: Duration = Duration::from_millis(1500);

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct ServerKills {
    postgres_kills: u32,
    nats_kills: u32,
}

pub(crate) struct Servers {
    database_url: String,
    nats_url: String,
    own: Vec<Own>,
    kills: ServerKills,
    rng: fastrand::Rng,
}

enum Own {
    Postgres(Server),
    Nats(Server),
}

impl Servers {
    pub(crate) async fn start(options: &Options, seed: u64) -> Result<Self> {
        let mut servers = Self {
            database_url: options.database_url.clone().unwrap_or_default(),
            nats_url: options.nats_url.clone().unwrap_or_default(),
            own: Vec::new(),
            kills: ServerKills::default(),
            rng: fastrand::Rng::with_seed(seed),
        };
        if let Some(program) = &options.postgres_program {
            let mut server = Server::postgres(program, &POSTGRES)?;
            server.start().await?;
            servers.database_url = server.url().to_owned();
            servers.own.push(Own::Postgres(server));
        }
        if let Some(program) = &options.nats_program {
            let mut server = Server::nats(program)?;
            server.start().await?;
            servers.nats_url = server.url().to_owned();
            servers.own.push(Own::Nats(server));
        }
        Ok(servers)
    }

    pub(crate) fn database_url(&self) -> &str {
        &self.database_url
    }

    pub(crate) fn nats_url(&self) -> &str {
        &self.nats_url
    }

    pub(crate) fn own(&self) -> usize {
        self.own.len()
    }

    pub(crate) fn kills(&self) -> ServerKills {
        self.kills
    }

    pub(crate) async fn kill(&mut self, index: usize) -> Result<()> {
        let server = match &mut self.own[index] {
            Own::Postgres(server) => {
                self.kills.postgres_kills += 1;
                server
            }
            Own::Nats(server) => {
                self.kills.nats_kills += 1;
                server
            }
        };
        server.kill()?;
        tokio::time::sleep(AWAY_MAX.mul_f64(self.rng.f64())).await;
        server.start().await
    }
}
