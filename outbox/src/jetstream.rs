//! Creates a stream's relay and inbox.

use outbox_core::Relay;
use outbox_inbox::Inbox;
use outbox_nats::async_nats::Client;
use outbox_nats::{EventStream, JetStreamPublisher, JetStreamSubscriber};
use outbox_sea_orm::SqlStore;
use sea_orm::DatabaseConnection;

/// Creates the relay and the inbox of an [`EventStream`], for tables with the default names.
///
/// ```no_run
/// # use outbox::prelude::*;
/// # async fn run(
/// #     relay_db: sea_orm::DatabaseConnection,
/// #     db: sea_orm::DatabaseConnection,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = EventStream::new("SHOP").with_prefix("shop")?;
/// let client = stream.connect("nats://127.0.0.1:4222").await?;
/// stream.provision(&client).await?;
/// let relay = stream.relay(relay_db, client.clone());
/// let inbox = stream.inbox(db, client);
/// Runner::new().with_relay(relay).with_inbox(inbox).run().await?;
/// # Ok(())
/// # }
/// ```
pub trait EventStreamExt: sealed::Sealed {
    /// Creates a relay that publishes the outbox in `db` to this stream once it runs. Give the
    /// relay its own pool (3 connections), so that a busy service does not delay it.
    ///
    /// Equivalent to `Relay::new(SqlStore::new(db), stream.publisher(client))`. Use that form for
    /// other table names ([`SqlStore::with_names`](crate::sea_orm::SqlStore::with_names)) or
    /// publisher settings ([`PublisherConfig`](crate::nats::PublisherConfig)).
    #[must_use]
    fn relay(&self, db: DatabaseConnection, client: Client) -> Relay<SqlStore, JetStreamPublisher>;

    /// Creates an inbox that, once it runs, receives messages from this stream and runs the
    /// program's handlers with transactions in `db`.
    ///
    /// Equivalent to `Inbox::new(db, stream.subscriber(client))`.
    #[must_use]
    fn inbox(&self, db: DatabaseConnection, client: Client) -> Inbox<JetStreamSubscriber>;
}

impl EventStreamExt for EventStream {
    fn relay(&self, db: DatabaseConnection, client: Client) -> Relay<SqlStore, JetStreamPublisher> {
        Relay::new(SqlStore::new(db), self.publisher(client))
    }

    fn inbox(&self, db: DatabaseConnection, client: Client) -> Inbox<JetStreamSubscriber> {
        Inbox::new(db, self.subscriber(client))
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for outbox_nats::EventStream {}
}
