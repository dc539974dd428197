//! Collects the evidence of a run: from the databases, the stream and the file of notices.
//!
//! Invariant: no number comes from counters of running code. Everything is read back after the programs have ended, with plain SQL where possible, so
//! that a bug of the library cannot hide itself.

use std::collections::BTreeMap;

use outbox::testing::LogEntry;
use outbox_core::{Aggregate, MessageId};
use sea_orm::{DatabaseConnection, DbBackend, DbErr, QueryResult};
use uuid::Uuid;

use crate::books::Books;
use crate::broker::Broker;
use crate::database::{count, rows};
use crate::failure::{Doing, Failure};
use crate::notices::{Notice, NoticeFile};
use crate::setup::{Part, Setup};

/// The input of the ledger.
#[derive(Debug, Clone, Default)]
pub(crate) struct Evidence {
    /// Rows of the service's table, and how many of them are shipped.
    pub(crate) orders: u64,
    pub(crate) shipped: u64,
    /// The messages in both outboxes.
    pub(crate) committed: Vec<Committed>,
    /// The entries of the stream, in stream order.
    pub(crate) stream: Vec<LogEntry>,
    pub(crate) deliveries: u64,
    /// The message ids of the effects in each consumer's database, repeated if a message took effect repeatedly.
    pub(crate) effects: BTreeMap<Part, Vec<MessageId>>,
    /// The lines of the file of notices.
    pub(crate) notices: Vec<Notice>,
    /// The books from the consumers' tables.
    pub(crate) books: Books,
    pub(crate) dead_letters: u64,
}

/// A row of an outbox.
#[derive(Debug, Clone)]
pub(crate) struct Committed {
    pub(crate) id: MessageId,
    pub(crate) aggregate: Aggregate,
    pub(crate) sequence: Option<u64>,
    pub(crate) event_type: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) outbox_dead: bool,
}

/// Connections to the databases of all parts.
pub(crate) type Connections = BTreeMap<Part, DatabaseConnection>;

impl Evidence {
    /// Reads everything. The programs must have ended.
    pub(crate) async fn collect(setup: &Setup, dbs: &Connections, broker: &Broker) -> Result<Self, Failure> {
        let service = &dbs[&Part::Service];
        let mut evidence = Self {
            orders: count(service, "SELECT COUNT(*) FROM orders").await?,
            shipped: count(
                service,
                "SELECT COUNT(*) FROM orders WHERE shipped_date IS NOT NULL",
            )
            .await?,
            stream: broker.read().await?,
            deliveries: broker.deliveries().await?,
            notices: NoticeFile::read(&setup.notices()).or_cannot("read the notices")?,
            books: Books::read(dbs).await?,
            ..Self::default()
        };
        for part in Part::OUTBOXES {
            evidence.committed.extend(committed(&dbs[&part]).await?);
        }
        for part in [Part::Inventory, Part::Billing, Part::Shipping] {
            evidence.effects.insert(part, effects(&dbs[&part]).await?);
        }
        for part in Part::CONSUMERS {
            evidence.dead_letters += count(&dbs[&part], "SELECT COUNT(*) FROM inbox_dead_letters").await?;
        }
        Ok(evidence)
    }
}

async fn committed(db: &DatabaseConnection) -> Result<Vec<Committed>, Failure> {
    // On MariaDB the keys are bytes, because its collations would treat different keys as equal.
    let text = |column| match db.get_database_backend() {
        DbBackend::MySql => format!("CONVERT({column} USING utf8mb4) AS {column}"),
        _ => String::from(column),
    };
    let sql = format!(
        "SELECT id, {}, {}, sequence, event_type, payload, status FROM outbox_messages ORDER BY row_id",
        text("aggregate_type"),
        text("aggregate_id")
    );
    let parse = |row: &QueryResult| -> Result<Committed, DbErr> {
        let aggregate = Aggregate::new(
            row.try_get::<String>("", "aggregate_type")?,
            row.try_get::<String>("", "aggregate_id")?,
        );
        Ok(Committed {
            id: row.try_get::<Uuid>("", "id")?.into(),
            aggregate,
            sequence: row
                .try_get::<Option<i64>>("", "sequence")?
                .map(i64::cast_unsigned),
            event_type: row.try_get("", "event_type")?,
            payload: row.try_get("", "payload")?,
            outbox_dead: row.try_get::<i16>("", "status")? == 2,
        })
    };
    rows(db, &sql)
        .await?
        .iter()
        .map(parse)
        .collect::<Result<_, _>>()
        .or_cannot("read the outbox")
}

async fn effects(db: &DatabaseConnection) -> Result<Vec<MessageId>, Failure> {
    let mut effects = Vec::new();
    for row in rows(db, "SELECT message_id FROM effects").await? {
        let id: String = row.try_get("", "message_id").or_cannot("read the effects")?;
        effects.push(id.parse::<Uuid>().or_cannot("read the effects")?.into());
    }
    Ok(effects)
}
