//! The relay of one outbox.

use std::time::Duration;

use anyhow::{Context as _, Result};
use outbox_core::{Publisher, Relay, RelayConfig};
use outbox_log::LogRelay;
use outbox_sea_orm::SqlStore;
use tokio_util::sync::CancellationToken;

use crate::database::connect;
use crate::setup::{Part, RelayKind, Setup};

pub(crate) async fn run<P: Publisher>(
    setup: &Setup,
    part: Part,
    publisher: P,
    shutdown: CancellationToken,
) -> Result<()> {
    let db = connect(&setup.urls[&part], 4).await?;
    // Shorter intervals than the defaults, so that a killed relay does not delay the demo.
    let config = RelayConfig::default()
        .lease_ttl(Duration::from_secs(2))
        .poll_max(Duration::from_millis(100));
    let store = SqlStore::new(db.clone());
    let report = match setup.relay {
        RelayKind::Polling => {
            let relay = Relay::new(store, publisher).with_config(config);
            relay.run(shutdown).await
        }
        RelayKind::Log => {
            let relay = LogRelay::new(store, setup.log(part, db)?, publisher).with_config(config);
            relay.run(shutdown).await
        }
    };
    let report = report.with_context(|| format!("cannot relay the outbox of {}", part.name()))?;
    tracing::info!(?report, "relay ended");
    Ok(())
}
