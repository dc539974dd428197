//! Collects the evidence of a run: from the databases, the stream and the file of notices.
//!
//! Invariant: all evidence is read after the programs have ended, and none from counters of running
//! code.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use outbox::testing::{LogEntry, recorded};
use outbox_core::Message;
use sea_orm::DatabaseConnection;
use uuid::Uuid;

use crate::books::Books;
use crate::broker::Broker;
use crate::database::{count, rows};
use crate::notices::NoticeFile;
use crate::setup::{Part, Setup};

#[derive(Debug, Clone, Default)]
pub(crate) struct Evidence {
    pub(crate) orders: u64,
    pub(crate) shipped: u64,
    pub(crate) committed: Vec<Message>,
    pub(crate) stream: Vec<LogEntry>,
    pub(crate) deliveries: u64,
    pub(crate) effects: BTreeMap<Part, Vec<Uuid>>,
    pub(crate) books: Books,
    pub(crate) outbox_dead: u64,
    pub(crate) dead_letters: u64,
}

pub(crate) type Connections = BTreeMap<Part, DatabaseConnection>;

impl Evidence {
    pub(crate) async fn collect(setup: &Setup, dbs: &Connections, broker: &Broker) -> Result<Self> {
        let service = &dbs[&Part::Service];
        let notices = NoticeFile(setup.notices())
            .lines()
            .context("cannot read the notices")?;
        let mut evidence = Self {
            orders: count(service, "orders").await?,
            shipped: count(service, "orders WHERE shipped_date IS NOT NULL").await?,
            stream: broker.read().await?,
            deliveries: broker.consumers().await?.map_or(0, |(_, deliveries)| deliveries),
            books: Books::read(dbs, &notices).await?,
            ..Self::default()
        };
        for part in Part::OUTBOXES {
            evidence.committed.extend(recorded(&dbs[&part]).await?);
            evidence.outbox_dead += count(&dbs[&part], "outbox_messages WHERE status = 2").await?;
        }
        for part in Part::CONSUMERS {
            evidence.dead_letters += count(&dbs[&part], "inbox_dead_letters").await?;
            let ids: Vec<String> = match part {
                Part::Notifications => notices.iter().map(|line| line[..36].to_owned()).collect(),
                _ => {
                    let rows = rows(&dbs[&part], "SELECT message_id FROM effects").await?;
                    let ids = rows.iter().map(|row| row.try_get_by_index(0));
                    ids.collect::<Result<_, _>>()?
                }
            };
            let ids = ids.iter().map(|id| id.parse()).collect::<Result<_, _>>();
            evidence
                .effects
                .insert(part, ids.context("cannot read the effects")?);
        }
        Ok(evidence)
    }
}
