//! A consumer that a test stops while it works, for `tests/it/stops.rs`. It prints one line when
//! ready, and one per effect.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use outbox_core::DomainEvent;
use outbox_core::retry::Backoff;
use outbox_core::shutdown::CancellationToken;
use outbox_inbox::{
    Event, HandlerError, HandlerState, Inbox, InboxConfig, Metadata, Router, idempotent_handler,
};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::servers::{Place, connect};

const WORK: Duration = Duration::from_millis(50);

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "parcel", name = "moved")]
struct Moved {
    #[domain_event(aggregate_id)]
    parcel: u32,
    step: u32,
}

/// The work that the stop interrupts.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum During {
    Handler,
    Batch,
    BackOff,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Child {
    #[command(flatten)]
    place: Place,
    #[arg(long)]
    during: During,
    /// Handlers block after this number of effects, until the stop.
    #[arg(long)]
    stop_after: Option<u64>,
}

#[derive(Debug)]
struct Gate {
    effects: Arc<AtomicU64>,
    stop_after: Option<u64>,
    stop: CancellationToken,
}

impl Gate {
    async fn work(&self) {
        let effects = self.effects.load(Ordering::SeqCst);
        if self.stop_after.is_some_and(|stop_after| effects >= stop_after) {
            self.stop.cancelled().await;
        }
        sleep(WORK).await;
    }
}

#[idempotent_handler(consumer = "stopped")]
async fn work(_event: Event<Moved>, gate: HandlerState<Gate>) -> Result<(), HandlerError> {
    gate.work().await;
    Ok(())
}

#[idempotent_handler(consumer = "stopped-batch", batch = 20)]
async fn work_together(_events: Vec<Event<Moved>>, gate: HandlerState<Gate>) -> Result<(), HandlerError> {
    gate.work().await;
    Ok(())
}

/// A failing handler does not block: the stop comes during the back-off.
#[idempotent_handler(consumer = "stopped-back-off")]
async fn fail_first(
    event: Event<Moved>,
    metadata: Metadata,
    gate: HandlerState<Gate>,
) -> Result<(), HandlerError> {
    if event.step == 3 && metadata.attempt() < 3 {
        sleep(WORK).await;
        return Err(HandlerError::retry("not yet"));
    }
    gate.work().await;
    Ok(())
}

pub(crate) async fn child(options: &Child) -> crate::Result<()> {
    let shutdown = outbox_core::shutdown::on_signals();
    let place = &options.place;
    let db = connect(&place.database_url, 10).await?;
    let stream = place.stream()?;
    let client = stream.connect(&place.nats_url).await?;
    writeln!(std::io::stdout(), "ready")?;
    let pause = Duration::from_secs(2);
    let config = InboxConfig::default()
        .ack_wait(Duration::from_secs(600))
        .shutdown_timeout(Duration::from_secs(60))
        .backoff(Backoff {
            min: pause,
            max: pause,
        });
    let (router, config) = match options.during {
        During::Handler => (Router::new().handler::<work>(), config),
        // With a higher concurrency, all remaining messages would be in one running batch.
        During::Batch => (Router::new().handler::<work_together>(), config.concurrency(2)),
        During::BackOff => (Router::new().handler::<fail_first>(), config),
    };
    let effects = Arc::new(AtomicU64::new(0));
    let gate = Gate {
        effects: effects.clone(),
        stop_after: options.stop_after,
        stop: shutdown.clone(),
    };
    Inbox::new(db, stream.subscriber(client))
        .with_router(router)
        .with_names(place.names()?)
        .with_config(config)
        .with_state(gate)
        .on_handled(move |handled| {
            effects.fetch_add(1, Ordering::SeqCst);
            let (parcel, step) = (&handled.message.aggregate.id, handled.message.sequence);
            let _ = writeln!(std::io::stdout(), "{parcel} {}", step.unwrap_or_default());
        })
        .run(shutdown)
        .await?;
    Ok(())
}
