//! `NATS_URL=nats://127.0.0.1:4222 cargo run -p examples --example 03_follow_up_events`
//!
//! A chain of consumers on a real JetStream: `shipping` answers each placed order with a follow-up event, recorded in
//! the transaction of its own effect; `notifications` sends a mail for it, which no transaction can hold, so it
//! hands a stable key to the mailer. Relay and consumers run side by side and end on a clean shutdown.

use std::sync::Mutex;

use outbox_core::shutdown::CancellationToken;
use outbox_core::{DomainEvent, Relay};
use outbox_inbox::{Event, HandlerError, Inbox, Metadata, Outbox, StableKey, HandlerState, Tx, idempotent_handler};
use outbox_nats::async_nats::jetstream;
use outbox_nats::{EventStream, connect, connect_options};
use outbox_sea_orm::SqlStore;
use sea_orm::{ConnectOptions, ConnectionTrait, Database, TransactionTrait};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "shipment", name = "dispatched")]
struct ShipmentDispatched {
    #[domain_event(aggregate_id)]
    order_id: u64,
}

#[idempotent_handler(consumer = "shipping")]
async fn ship(event: Event<OrderPlaced>, tx: Tx<'_>, outbox: Outbox<'_>) -> Result<(), HandlerError> {
    tx.execute_unprepared(&format!("INSERT INTO shipments VALUES ({})", event.order_id))
        .await?;
    outbox
        .record([ShipmentDispatched {
            order_id: event.order_id,
        }])
        .await?;
    Ok(())
}

/// Stands for a provider that drops a second request with the same key, as payment and mail providers do.
struct Mailer {
    seen: Mutex<Vec<String>>,
    sent: mpsc::UnboundedSender<String>,
}

impl Mailer {
    fn send(&self, idempotency_key: String, text: String) -> Result<(), std::io::Error> {
        let mut seen = self
            .seen
            .lock()
            .map_err(|_| std::io::Error::other("mailer is broken"))?;
        if !seen.contains(&idempotency_key) {
            seen.push(idempotency_key);
            self.sent.send(text).map_err(std::io::Error::other)?;
        }
        Ok(())
    }
}

#[idempotent_handler(consumer = "notifications")]
async fn notify(
    event: Event<ShipmentDispatched>,
    key: StableKey,
    metadata: Metadata,
    mailer: HandlerState<Mailer>,
) -> Result<(), HandlerError> {
    // The follow-up knows where it comes from: the order's message is its cause.
    let caused = metadata.context().causation_id.is_some();
    mailer.send(
        key.step("mail").to_string(),
        format!("order {} is on its way (has a cause: {caused})", event.order_id),
    )?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = ConnectOptions::new("sqlite::memory:");
    options.max_connections(1); // Each connection to `:memory:` is a database of its own.
    let db = Database::connect(options).await?;
    db.execute_unprepared("CREATE TABLE shipments (order_id BIGINT)")
        .await?;
    outbox_sea_orm::migrate(&db).await?;
    outbox_inbox::migrate(&db).await?;

    let tx = db.begin().await?;
    outbox_sea_orm::record(
        &tx,
        (1..=3)
            .map(|order_id| OrderPlaced { order_id })
            .collect::<Vec<_>>(),
    )
    .await?;
    tx.commit().await?;

    let url = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());
    let client = connect(url, connect_options()).await?;
    // A stream and a prefix of its own, so that the example disturbs nothing; a service keeps the defaults `EVENTS` and `events`.
    let stream = EventStream::new("EXAMPLE_03").with_prefix("example03")?;
    let _ = jetstream::new(client.clone()).delete_stream(stream.name()).await;
    stream.provision(&client).await?;

    let relay = Relay::new(SqlStore::new(db.clone()), stream.publisher(client.clone()));
    let (sent, mut mails) = mpsc::unbounded_channel();
    let inbox = Inbox::new(db, stream.subscriber(client)).with_state(Mailer {
        seen: Mutex::default(),
        sent,
    });

    let shutdown = CancellationToken::new();
    let all_sent = async {
        let mut texts = Vec::new();
        while texts.len() < 3 {
            texts.extend(mails.recv().await);
        }
        shutdown.cancel(); // In a service: `outbox_core::shutdown::on_signals()`.
        texts.sort();
        texts
    };
    // What cannot start ends the others too. Nothing is lost by that, as in a crash.
    type Failure = Box<dyn std::error::Error>;
    let (relay, inbox, texts) = tokio::try_join!(
        async { Ok::<_, Failure>(relay.run(shutdown.clone()).await?) },
        async { Ok::<_, Failure>(inbox.run(shutdown.clone()).await?) },
        async { Ok::<_, Failure>(all_sent.await) },
    )?;
    println!("{}", texts.join("\n"));
    println!(
        "relay published {}, inbox handled {}",
        relay.published, inbox.handled
    );
    Ok(())
}
