//! Inboxes with one mistake each, which the suite must find.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::Message;
use outbox_inbox::testing::{Harness, HarnessError, Outcome};
use outbox_inbox::{Handler, InboxConfig};
use outbox_testing::MemoryDedupStore;
use sea_orm::{ConnectionTrait as _, DatabaseConnection, Statement, TransactionTrait as _};
use tokio::sync::Barrier;

use super::handlers::{LineNoted, Notes};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mistake {
    ChecksThenActs,
    AcknowledgesFirst,
    ForgetsConsumer,
}

pub(super) struct Process {
    harness: Harness,
    db: DatabaseConnection,
    notes: Notes,
    meeting: Arc<Barrier>,
    mistake: Option<Mistake>,
}

impl Process {
    pub(super) fn new(
        db: DatabaseConnection,
        notes: &Notes,
        store: &MemoryDedupStore,
        config: InboxConfig,
        (mistake, meeting): (Option<Mistake>, &Arc<Barrier>),
    ) -> Self {
        let harness = Harness::new(db.clone())
            .with_state(notes.clone())
            .with_dedup_store(store.clone())
            .with_config(config);
        Self {
            harness,
            db,
            notes: notes.clone(),
            meeting: meeting.clone(),
            mistake,
        }
    }

    pub(super) async fn deliver_message<H: Handler>(
        &self,
        message: &Message,
    ) -> Result<Outcome, HarnessError> {
        self.redeliver_message::<H>(message, 1).await
    }

    pub(super) async fn redeliver_message<H: Handler>(
        &self,
        message: &Message,
        delivery_count: u64,
    ) -> Result<Outcome, HarnessError> {
        match self.mistake {
            None => self.harness.redeliver_message::<H>(message, delivery_count).await,
            Some(mistake) => Ok(self.handle(mistake, H::REGISTRATION.consumer, message).await),
        }
    }

    async fn handle(&self, mistake: Mistake, consumer: &str, message: &Message) -> Outcome {
        let event: LineNoted = serde_json::from_slice(&message.payload).unwrap();
        let consumer = match mistake {
            Mistake::ForgetsConsumer => "all",
            _ => consumer,
        };
        let id = message.event_id;
        let seen = format!("SELECT 1 AS n FROM seen WHERE consumer = '{consumer}' AND id = '{id}'");
        let seen = Statement::from_string(self.db.get_database_backend(), seen);
        let is_seen = async || self.db.query_one_raw(seen.clone()).await.unwrap().is_some();
        let record = format!("INSERT INTO seen (consumer, id) VALUES ('{consumer}', '{id}')");
        let LineNoted { account, line } = event;
        let effect = format!(
            "INSERT INTO effects (consumer, order_id, stable_key) VALUES ('notes', {account}, '{line}')"
        );
        if is_seen().await {
            return Outcome::Duplicate;
        }
        match mistake {
            Mistake::ChecksThenActs => {
                let _ = tokio::time::timeout(Duration::from_millis(100), self.meeting.wait()).await;
            }
            Mistake::AcknowledgesFirst => drop(self.db.execute_unprepared(&record).await.unwrap()),
            Mistake::ForgetsConsumer => {}
        }
        let tx = self.db.begin().await.unwrap();
        tx.execute_unprepared(&effect).await.unwrap();
        self.notes.go_on(&event).await.unwrap();
        if mistake != Mistake::AcknowledgesFirst {
            tx.execute_unprepared(&record).await.unwrap();
        }
        tx.commit().await.unwrap();
        Outcome::Handled
    }
}
