//! `DATABASE_URL=postgres://… NATS_URL=nats://127.0.0.1:4222 cargo run -p examples --example 23_log_relay`
//!
//! A log relay: it reads events from PostgreSQL's transaction log, and publishing writes nothing.
//! The server needs `wal_level = logical`.

use outbox::log::{LogRelay, PostgresLog};
use outbox::nats::async_nats::jetstream;
use outbox::prelude::*;
use outbox::sea_orm::SqlStore;
use sea_orm::ConnectionTrait as _;
use serde::{Deserialize, Serialize};

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 1)]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: i32,
}

#[tokio::main]
async fn main() -> Result<(), outbox::Failure> {
    tracing_subscriber::fmt()
        .with_env_filter("info,sqlx=warn,async_nats=warn")
        .with_writer(std::io::stderr)
        .init();
    let database_url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, for example to postgres://relay@127.0.0.1/shop")?;
    let nats_url = std::env::var("NATS_URL").unwrap_or_else(|_| "nats://127.0.0.1:4222".to_owned());

    // The example recreates a separate schema. A service keeps the defaults, and the log name
    // `outbox`.
    let mut options = sea_orm::ConnectOptions::new(&database_url);
    options.set_schema_search_path("example_23");
    let db = outbox::connect(options).await?;
    let log = PostgresLog::new(db.clone(), &database_url)?.named("example_23")?;
    log.drop().await?;
    db.execute_unprepared("DROP SCHEMA IF EXISTS example_23 CASCADE")
        .await?;
    db.execute_unprepared("CREATE SCHEMA example_23").await?;
    outbox::migrate(&db).await?;
    let stream = EventStream::new("EXAMPLE_23").with_prefix("example23")?;
    let client = stream.connect(nats_url).await?;
    stream.provision(&client).await?;
    let before = messages(&client).await?;

    // The owner of the tables calls `init` once. From here on, new messages are logged.
    log.init().await?;

    // A log relay replaces the polling relay.
    let store = SqlStore::new(db.clone());
    let publisher = stream.publisher(client.clone());
    let shutdown = outbox::core::shutdown::on_signals();
    let relay = LogRelay::new(store, log.clone(), publisher);
    let relaying = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { relay.run(shutdown).await }
    });

    // Writers are the same as with a polling relay.
    let tx = OutboxConnection::new(db.clone(), OutboxConfig::default())
        .begin()
        .await?;
    outbox::sea_orm::record(&tx, [OrderPlaced { order_id: 1 }]).await?;
    tx.commit().await?;
    println!("recorded order 1");

    while messages(&client).await? == before {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    shutdown.cancel();
    let report = relaying.await??;
    println!("published {} from the log", report.published);

    // `drop` returns to polling. Without it, the slot would retain the server's WAL without limit.
    log.drop().await?;
    println!("the log is off: {}", !log.status().await?.is_on);
    Ok(())
}

async fn messages(client: &outbox::nats::async_nats::Client) -> Result<u64, outbox::Failure> {
    let stream = jetstream::new(client.clone()).get_stream("EXAMPLE_23").await?;
    Ok(stream.cached_info().state.messages)
}
