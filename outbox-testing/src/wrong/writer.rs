//! Writers with one mistake each.
//!
//! Each integration records in its own way, so the mistakes are in the fixture that stands for an integration.

use std::time::Duration;

use outbox_core::message::{Events, IntoEvents, Limits, MessageId, NewMessage};
use time::OffsetDateTime;

use crate::conformance::memory::MemoryStoreFixture;
use crate::conformance::store::{Refused, RowState, StoreCapabilities, StoreFixture};
use crate::{MemoryStore, MemoryTransaction};

/// The mistake of a [`WrongWriter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterMistake {
    /// Records outside the caller's transaction, so that a rollback leaves ghosts.
    CommitsRolledBack,
    /// Takes numbers outside the transaction, as from a database sequence, so that a rollback leaves gaps.
    LeavesHoles,
    /// Does not enforce deduplication keys.
    IgnoresDedupKeys,
    /// Uses up a number for each unsequenced message.
    NumbersEverything,
    /// Records the events of one call in another order.
    ReversesBatches,
    /// Swallows the error of an event that cannot be recorded.
    HidesRefusals,
}

/// A fixture whose writer has one mistake.
#[derive(Debug)]
pub struct WrongWriter {
    inner: MemoryStoreFixture,
    mistake: WriterMistake,
}

impl WrongWriter {
    /// A fixture over a fresh store.
    #[must_use]
    pub fn new(mistake: WriterMistake) -> Self {
        Self {
            inner: MemoryStoreFixture::new(),
            mistake,
        }
    }

    fn spoil(&self, messages: &mut [NewMessage]) {
        match self.mistake {
            WriterMistake::IgnoresDedupKeys => self.store().forget_dedup_keys(),
            WriterMistake::ReversesBatches => messages.reverse(),
            WriterMistake::NumbersEverything => {
                for message in messages.iter().filter(|message| !message.is_sequenced()) {
                    self.store().use_up_number(message.aggregate());
                }
            }
            _ => {}
        }
    }
}

impl StoreFixture for WrongWriter {
    type Store = MemoryStore;
    type Open = MemoryTransaction;

    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn store(&self) -> &MemoryStore {
        self.inner.store()
    }

    async fn now(&self) -> OffsetDateTime {
        self.inner.now().await
    }

    async fn commit(&self, events: Events) -> Result<(), Refused> {
        let mut messages = match events.checked(&Limits::default()) {
            Ok(messages) => messages,
            Err(_) if self.mistake == WriterMistake::HidesRefusals => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.spoil(&mut messages);
        self.inner.commit(messages.into_events()).await
    }

    async fn roll_back(&self, events: Events) -> Result<(), Refused> {
        let messages = events.checked(&Limits::default())?;
        match self.mistake {
            WriterMistake::CommitsRolledBack => return self.inner.commit(messages.into_events()).await,
            WriterMistake::LeavesHoles => {
                for message in &messages {
                    self.store().use_up_number(message.aggregate());
                }
            }
            _ => {}
        }
        self.inner.roll_back(messages.into_events()).await
    }

    async fn begin(&self, events: Events) -> Result<MemoryTransaction, Refused> {
        self.inner.begin(events).await
    }

    async fn expire_leases(&self) {
        self.inner.expire_leases().await;
    }

    async fn set_back_row_ids(&self) {
        self.inner.set_back_row_ids().await;
    }

    async fn set_clock_back(&self, by: Duration) {
        self.inner.set_clock_back(by).await;
    }

    async fn corrupt(&self, id: MessageId) {
        self.inner.corrupt(id).await;
    }

    async fn rows(&self) -> Vec<RowState> {
        self.inner.rows().await
    }
}
