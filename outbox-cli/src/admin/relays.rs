//! Lists live and dead relays.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::time::Duration;

use outbox::core::{
    BlockedAggregate, ExpiredRelay, LiveRelay, OutboxReader, OwnerId, Registration, RelayHealth,
    RelayTrouble, Retention, Selection, StoreError, StoredMessage,
};
use serde::{Serialize, Serializer};
use time::OffsetDateTime;

use crate::admin::serial;
use crate::admin::table::{Column, Columns};
use crate::admin::words::{any, utc};

/// A live relay, or a dead relay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RelayRow {
    /// Owner id, new at each start.
    #[serde(serialize_with = "serial::text")]
    pub owner: OwnerId,
    /// Relay name. A dead relay's name is known until another relay registers.
    pub name: Option<String>,
    /// Whether the relay is alive. A dead relay's registration or leases have expired.
    pub is_alive: bool,
    /// `healthy`, `unknown`, `recovering` or `unhealthy`; `None` if dead.
    #[serde(serialize_with = "health")]
    pub health: Option<RelayHealth>,
    /// Partitions owned, or left by a dead relay.
    pub partitions: u16,
    /// Start time, by the clock of the relay.
    #[serde(serialize_with = "serial::time_if_any")]
    pub started_at: Option<OffsetDateTime>,
    /// Time until the registration expires; zero if dead.
    #[serde(rename = "expires_in_seconds", serialize_with = "serial::seconds")]
    pub expires_in: Duration,
    /// `polling` or `log`; `None` if unknown.
    pub mode: Option<&'static str>,
    /// Target stream; `None` if unknown.
    pub stream: Option<String>,
    /// Subject template; `None` if unknown.
    pub subjects: Option<String>,
    /// Source of its messages (`ce-source`); `None` if unknown.
    pub source: Option<String>,
    /// Retention: `keep`, `delete` or a time such as `604800s`; `None` if unknown.
    pub retention: Option<String>,
    /// Version of `outbox-core`; `None` if unknown.
    pub version: Option<String>,
    /// Class of the current failure: `database` or a broker class.
    pub error_class: Option<&'static str>,
    /// Current failure.
    pub error: Option<String>,
    /// Failure duration.
    #[serde(rename = "failing_for_seconds", serialize_with = "serial::seconds_if_any")]
    pub failing_for: Option<Duration>,
}

impl RelayRow {
    fn dead(owner: OwnerId, partitions: u16) -> Self {
        Self {
            owner,
            name: None,
            is_alive: false,
            health: None,
            partitions,
            started_at: started_at(owner),
            expires_in: Duration::ZERO,
            mode: None,
            stream: None,
            subjects: None,
            source: None,
            retention: None,
            version: None,
            error_class: None,
            error: None,
            failing_for: None,
        }
    }

    fn with(mut self, registration: Registration, trouble: Option<RelayTrouble>) -> Self {
        self.mode = Some(registration.mode.as_str());
        if let Some(destination) = registration.destination {
            self.stream = Some(destination.stream);
            self.subjects = Some(destination.subjects);
            self.source = Some(destination.source);
        }
        self.retention = registration.retention.map(|retention| match retention {
            Retention::Keep => "keep".to_owned(),
            Retention::Delete => "delete".to_owned(),
            Retention::KeepFor(time) => format!("{}s", time.as_secs()),
        });
        self.version = registration.version;
        if let Some(trouble) = trouble {
            self.error_class = Some(trouble.class.as_str());
            self.error = Some(trouble.error);
            self.failing_for = Some(trouble.failing_for);
        }
        self
    }

    /// Health, or `dead`.
    pub fn health_text(&self) -> &'static str {
        self.health.map_or("dead", RelayHealth::as_str)
    }
}

fn health<S: Serializer>(health: &Option<RelayHealth>, to: S) -> Result<S::Ok, S::Error> {
    match health {
        Some(health) => to.serialize_str(health.as_str()),
        None => to.serialize_none(),
    }
}

/// Live relays by start, then dead relays. A dead relay has an expired registration, or expired
/// leases that no live relay has taken.
///
/// # Errors
///
/// [`StoreError`].
pub async fn relays(store: &impl OutboxReader) -> Result<Vec<RelayRow>, StoreError> {
    let alive = store.relays().await?;
    let expired = store.expired_relays().await?;
    let mut owned: HashMap<OwnerId, u16> = HashMap::new();
    let mut left: BTreeMap<OwnerId, u16> = BTreeMap::new();
    for lease in store.partitions().await? {
        if let Some(owner) = lease.owner {
            *owned.entry(owner).or_default() += 1;
        }
        if let Some(owner) = lease.last_owner {
            *left.entry(owner).or_default() += 1;
        }
    }
    for relay in &expired {
        left.entry(relay.owner).or_default();
    }
    left.retain(|owner, _| alive.iter().all(|relay| relay.owner != *owner));
    let row = |relay: LiveRelay| RelayRow {
        name: relay.name,
        is_alive: true,
        health: Some(relay.health),
        expires_in: relay.expires_in,
        ..RelayRow::dead(relay.owner, owned.get(&relay.owner).copied().unwrap_or_default())
            .with(relay.registration, relay.trouble)
    };
    let mut rows: Vec<RelayRow> = alive.into_iter().map(row).collect();
    let mut expired: HashMap<OwnerId, ExpiredRelay> =
        expired.into_iter().map(|relay| (relay.owner, relay)).collect();
    rows.extend(left.into_iter().map(|(owner, partitions)| {
        let row = RelayRow::dead(owner, partitions);
        match expired.remove(&owner) {
            Some(relay) => RelayRow {
                name: relay.name,
                ..row.with(relay.registration, relay.trouble)
            },
            None => row,
        }
    }));
    Ok(rows)
}

/// A UUID v7 starts with 48 bits of milliseconds.
fn started_at(owner: OwnerId) -> Option<OffsetDateTime> {
    let id = owner.as_uuid();
    if id.get_version_num() != 7 {
        return None;
    }
    let millis = i128::try_from(id.as_u128() >> 80).ok()?;
    OffsetDateTime::from_unix_timestamp_nanos(millis * 1_000_000).ok()
}

pub(crate) async fn dead_letter(
    store: &impl OutboxReader,
    block: &BlockedAggregate,
    row_id: i64,
) -> Result<Option<StoredMessage>, StoreError> {
    let selection = Selection::dead_letters()
        .aggregate(&block.aggregate)
        .after(row_id - 1);
    let mut letters = store.list(&selection, NonZeroU32::MIN).await?;
    Ok(letters.pop().filter(|letter| letter.row_id == row_id))
}

impl Columns for RelayRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("relay", |row| row.owner.to_string()),
        Column::new("name", |row| any(row.name.as_ref())),
        Column::new("health", |row| row.health_text().to_owned()),
        Column::new("partitions", |row| row.partitions.to_string()),
        Column::new("started", |row| any(row.started_at.map(utc))),
        Column::new("stream", |row| any(row.stream.as_ref())),
        Column::new("source", |row| any(row.source.as_ref())),
        Column::new("error", |row| any(row.error.as_ref())),
    ];
}
