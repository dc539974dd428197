//! One test handler per strategy, and the properties that each strategy guarantees.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use outbox_core::DomainEvent;
use outbox_inbox::{Event, HandlerError, HandlerState, Tx, idempotent_handler};
use sea_orm::ConnectionTrait as _;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

#[derive(Debug, Clone, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "account", name = "noted")]
pub(super) struct LineNoted {
    #[domain_event(aggregate_id)]
    pub(super) account: u64,
    pub(super) line: u64,
}

impl LineNoted {
    fn number(&self) -> String {
        format!("{}-{}", self.account, self.line)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Traits {
    pub(super) name: &'static str,
    pub(super) ordered: bool,
    pub(super) by_key: bool,
    pub(super) leased: bool,
}

impl Traits {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            ordered: false,
            by_key: false,
            leased: false,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Notes(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) outside: Mutex<HashMap<u64, Vec<u64>>>,
    pub(super) poison: u64,
    pub(super) hang: u64,
    pub(super) hanging: Semaphore,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            outside: Mutex::default(),
            poison: 666,
            hang: 0,
            hanging: Semaphore::new(0),
        }
    }
}

impl Notes {
    pub(super) fn that_hang_at(line: u64) -> Self {
        Self(Arc::new(Inner {
            hang: line,
            ..Inner::default()
        }))
    }

    pub(super) async fn go_on(&self, event: &LineNoted) -> Result<(), HandlerError> {
        if event.line == self.0.poison {
            return Err(HandlerError::retry("poison"));
        }
        if event.line == self.0.hang {
            self.0.hanging.add_permits(1);
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

async fn note(event: &LineNoted, tx: &Tx<'_>, notes: &Notes) -> Result<(), HandlerError> {
    let LineNoted { account, line } = event;
    let effect =
        format!("INSERT INTO effects (consumer, order_id, stable_key) VALUES ('notes', {account}, '{line}')");
    tx.execute_unprepared(&effect).await?;
    notes.go_on(event).await
}

#[idempotent_handler(consumer = "elsewhere")]
pub(super) async fn note_elsewhere(event: Event<LineNoted>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let LineNoted { account, line } = &*event;
    let effect = format!(
        "INSERT INTO effects (consumer, order_id, stable_key) VALUES ('elsewhere', {account}, '{line}')"
    );
    tx.execute_unprepared(&effect).await?;
    Ok(())
}

macro_rules! noting {
    ($name:ident, $consumer:literal, $($strategy:tt)+) => {
        #[idempotent_handler(consumer = $consumer, strategy = $($strategy)+)]
        pub(super) async fn $name(
            event: Event<LineNoted>,
            tx: Tx<'_>,
            notes: HandlerState<Notes>,
        ) -> Result<(), HandlerError> {
            note(&event, &tx, &notes).await
        }
    };
}

noting!(note_by_message_id, "by_message_id", message_id);
noting!(note_by_sequence, "by_sequence", sequence);
noting!(note_by_key, "by_key", key(LineNoted::number));

#[idempotent_handler(consumer = "naturally", strategy = natural)]
pub(super) async fn note_naturally(
    event: Event<LineNoted>,
    tx: Tx<'_>,
    notes: HandlerState<Notes>,
) -> Result<(), HandlerError> {
    let LineNoted { account, line } = &*event;
    let id = account * 1000 + line;
    tx.execute_unprepared(&format!("UPDATE notes SET noted = 1 WHERE id = {id}"))
        .await?;
    notes.go_on(&event).await
}

#[idempotent_handler(
    consumer = "by_constraint",
    strategy = constraint("markers_pkey", "PRIMARY", "markers.id")
)]
pub(super) async fn note_by_constraint(
    event: Event<LineNoted>,
    tx: Tx<'_>,
    notes: HandlerState<Notes>,
) -> Result<(), HandlerError> {
    let LineNoted { account, line } = &*event;
    let id = account * 1000 + line;
    tx.execute_unprepared(&format!("INSERT INTO markers (id) VALUES ({id})"))
        .await?;
    note(&event, &tx, &notes).await
}

#[idempotent_handler(consumer = "by_external", strategy = external)]
pub(super) async fn note_by_external(
    event: Event<LineNoted>,
    notes: HandlerState<Notes>,
) -> Result<(), HandlerError> {
    notes.go_on(&event).await?;
    let mut outside = notes.0.0.outside.lock().unwrap();
    outside.entry(event.account).or_default().push(event.line);
    Ok(())
}
