//! The relay of one outbox.

use std::time::Duration;

use outbox_core::log::LogRelay;
use outbox_core::{Publisher, Relay, RelayConfig};
use outbox_sea_orm::SqlStore;
use tokio_util::sync::CancellationToken;

use crate::database::connect;
use crate::failure::{Doing, Failure};
use crate::setup::{Part, RelayKind, Setup};

/// Publishes the messages of a part until `shutdown`.
pub(crate) async fn run<P: Publisher>(
    setup: &Setup,
    part: Part,
    publisher: P,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let url = setup.url(part);
    let db = connect(setup.database, url, 4).await?;
    // Shorter intervals than the defaults, which spare the database. People watch a demo, and a killed relay must not delay it.
    let config = RelayConfig::default()
        .lease_ttl(Duration::from_secs(2))
        .poll_min(Duration::from_millis(10))
        .poll_max(Duration::from_millis(100));
    let store = SqlStore::new(db.clone());
    let report = match setup.relay {
        RelayKind::Polling => {
            Relay::new(store, publisher)
                .with_config(config)
                .run(shutdown)
                .await
        }
        RelayKind::Log => {
            let log = setup.log(part, url, db)?;
            let relay = LogRelay::new(store, log, publisher).with_config(config);
            relay.run(shutdown).await
        }
    };
    let report = report.or_cannot(format_args!("relay the outbox of {}", part.name()))?;
    tracing::info!(?report, "relay ended");
    Ok(())
}
