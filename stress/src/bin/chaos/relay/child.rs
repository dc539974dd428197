//! One relay, as a process that may be killed.

use std::fmt::Display;
use std::time::Duration;

use clap::Args;
use outbox_core::retry::Backoff;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{Relay, RelayConfig, RelayError, StoreError};
use outbox_log::{LogRelay, PostgresLog};
use outbox_nats::PublisherConfig;
use outbox_sea_orm::SqlStore;
use tokio::time::sleep;

use super::{LEASE, Way};
use crate::Result;
use crate::servers::{Place, connect};

const AGAIN: Duration = Duration::from_millis(100);

#[derive(Args, Clone, Debug)]
pub(crate) struct Child {
    #[command(flatten)]
    place: Place,
    #[arg(long, value_enum, default_value_t = Way::Table)]
    relay: Way,
}

pub(crate) async fn child(options: &Child) -> Result<()> {
    let (place, shutdown) = (&options.place, outbox_core::shutdown::on_signals());
    let connected = until_done(&shutdown, || connect(&place.database_url, 4)).await;
    let Some(db) = connected else { return Ok(()) };
    let connected = until_done(&shutdown, || {
        outbox_nats::connect(&place.nats_url, outbox_nats::connect_options())
    });
    let Some(client) = connected.await else {
        return Ok(());
    };
    let (names, stream) = (place.names()?, place.stream()?);
    let publisher = || {
        let config = PublisherConfig::default().ack_timeout(LEASE / 3);
        stream.publisher(client.clone()).with_config(config)
    };
    let store = || SqlStore::new(db.clone()).with_names(&names);
    match options.relay {
        Way::Table => {
            let relay = Relay::new(store()?, publisher()).with_config(config());
            relay.run(shutdown).await?;
        }
        Way::Log => loop {
            let log = PostgresLog::new(db.clone(), &place.database_url)?
                .named(&place.name)?
                .with_names(&names);
            let relay = LogRelay::new(store()?, log, publisher()).with_config(config());
            match relay.run(shutdown.clone()).await {
                Ok(_) => return Ok(()),
                // The log is being dropped or recreated, so the relay retries.
                Err(RelayError::Store(StoreError::Setup { .. })) => sleep(AGAIN).await,
                Err(error) => return Err(error.into()),
            }
        },
    }
    Ok(())
}

fn config() -> RelayConfig {
    let backoff = Backoff {
        min: Duration::from_millis(50),
        max: Duration::from_secs(1),
    };
    RelayConfig::default()
        .lease_ttl(LEASE)
        .poll_max(Duration::from_millis(100))
        .backoff(backoff)
}

async fn until_done<T, E: Display, F: Future<Output = std::result::Result<T, E>>>(
    shutdown: &CancellationToken,
    mut attempt: impl FnMut() -> F,
) -> Option<T> {
    let tried = async {
        loop {
            match attempt().await {
                Ok(done) => return done,
                Err(error) => eprintln!("a relay waits: {error}"),
            }
            sleep(AGAIN).await;
        }
    };
    shutdown.run_until_cancelled(tried).await
}
