//! Validates a configuration without contacting a server.

use outbox::Failure;
use outbox::core::shutdown::CancellationToken;
use outbox::core::{Destination, FailureClass, Message, PublishError, Publisher, Receipt, Relay};
use outbox::log::LogRelay;
use outbox::sea_orm::{ConnectError, SqlStore, open_lazily};
use sea_orm::{ConnectOptions, DatabaseConnection};

use super::log;
use crate::commands::servers;
use crate::config::Outbox;

pub(super) async fn check(outbox: &Outbox) -> Result<(), Failure> {
    named(outbox, try_check(outbox).await)
}

pub(super) fn named<T>(outbox: &Outbox, outcome: Result<T, Failure>) -> Result<T, Failure> {
    outcome.map_err(|failure| Failure::from(format!("outbox `{}`: {failure}", outbox.name())))
}

async fn try_check(outbox: &Outbox) -> Result<(), Failure> {
    servers::of(outbox)?;
    let db = lazy(outbox).await?;
    let store = SqlStore::new(db.clone())
        .with_names(&outbox.table_names()?)?
        .allow_untested_engine(outbox.section.allow_untested_engine);
    let config = outbox.section.relay.relay_config();
    // A relay whose token is cancelled before `run` validates its settings and ends without
    // contacting a server.
    let stopped = CancellationToken::new();
    stopped.cancel();
    let section = &outbox.section.log;
    if section.read {
        let relay = LogRelay::new(store, log::of(outbox, db)?, Nowhere).with_config(config);
        relay.with_log_config(section.log_config()).run(stopped).await?;
    } else {
        Relay::new(store, Nowhere)
            .with_config(config)
            .run(stopped)
            .await?;
    }
    if let Some(path) = [&outbox.nats_credentials, &outbox.section.nats_ca]
        .into_iter()
        .flatten()
        .find(|path| !path.is_file())
    {
        return Err(format!("there is no file {}; correct the path", path.display()).into());
    }
    Ok(())
}

async fn lazy(outbox: &Outbox) -> Result<DatabaseConnection, ConnectError> {
    let mut options = ConnectOptions::new(outbox.database_url.expose());
    options.min_connections(0);
    Box::pin(open_lazily(options)).await
}

#[derive(Debug)]
struct Nowhere;

impl Publisher for Nowhere {
    fn destination(&self) -> Option<Destination> {
        None
    }

    async fn publish(&self, _: &Message) -> Result<Receipt, PublishError> {
        Err(PublishError::new(
            FailureClass::Unknown,
            "this relay only checks its settings",
        ))
    }
}
