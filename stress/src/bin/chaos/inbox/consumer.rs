//! One consumer process and its handler.
//!
//! The handler writes its effect before it fails or aborts, so that a missing rollback becomes
//! visible.

use std::time::Duration;

use clap::Args;
use outbox_core::DomainEvent;
use outbox_core::retry::Backoff;
use outbox_inbox::{Event, HandlerError, HandlerState, Inbox, InboxConfig, Router, Tx, idempotent_handler};
use sea_orm::ConnectionTrait as _;
use serde::{Deserialize, Serialize};

use super::world::effects;
use crate::servers::{Place, connect};

const WORKERS: usize = 8;

pub(super) const CONSUMER: &str = "credit";

pub(super) const ACK_WAIT: Duration = Duration::from_millis(1500);

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "account", name = "deposited")]
pub(super) struct Deposited {
    #[domain_event(aggregate_id)]
    pub(super) account: u32,
    pub(super) number: u32,
}

pub(super) fn is_doomed(number: u32) -> bool {
    is_poison(number) || is_deadly(number)
}

fn is_poison(number: u32) -> bool {
    number % 100 == 99
}

fn is_deadly(number: u32) -> bool {
    number % 1000 == 250
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Child {
    #[command(flatten)]
    place: Place,
    #[arg(long)]
    misbehave: bool,
}

#[derive(Debug)]
struct Orders {
    effects: String,
    misbehave: bool,
}

#[idempotent_handler(consumer = "credit")]
async fn credit(
    event: Event<Deposited>,
    tx: Tx<'_>,
    orders: HandlerState<Orders>,
) -> Result<(), HandlerError> {
    let number = event.number;
    tx.execute_unprepared(&format!(
        "INSERT INTO {} (number) VALUES ({number})",
        orders.effects
    ))
    .await?;
    if !orders.misbehave {
        return Ok(());
    }
    if is_deadly(number) || fastrand::u32(..5000) == 0 {
        std::process::abort();
    }
    if is_poison(number) || fastrand::u32(..20) == 0 {
        return Err(HandlerError::retry("out of sorts"));
    }
    Ok(())
}

pub(crate) async fn child(options: &Child) -> crate::Result<()> {
    let place = &options.place;
    let db = connect(&place.database_url, u32::try_from(WORKERS)?).await?;
    let stream = place.stream()?;
    let client = stream.connect(&place.nats_url).await?;
    let config = InboxConfig::default()
        .concurrency(WORKERS)
        .in_flight_max(8 * WORKERS)
        .ack_wait(ACK_WAIT)
        .handler_timeout(ACK_WAIT / 2)
        .attempts_max(if options.misbehave { 3 } else { 1_000 })
        .backoff(Backoff {
            min: Duration::from_millis(20),
            max: Duration::from_millis(500),
        });
    let orders = Orders {
        effects: effects(&place.name),
        misbehave: options.misbehave,
    };
    Inbox::new(db, stream.subscriber(client))
        .with_router(Router::new().handler::<credit>())
        .with_names(place.names()?)
        .with_config(config)
        .with_state(orders)
        .run(outbox_core::shutdown::on_signals())
        .await?;
    Ok(())
}
