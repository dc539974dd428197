//! The registry of relays.

pub(super) mod name;
pub(super) mod sql;

use std::time::Duration;

use outbox_core::{
    Announcement, Destination, ExpiredRelay, LiveRelay, OwnerId, Registration, RelayHealth, RelayMode,
    RelayTrouble, Relays, Retention, TroubleClass,
};
use sea_orm::{DbErr, QueryResult};
use uuid::Uuid;

use self::sql::Announced;
use super::row::since;
use super::session::Session;
use crate::sql::micros;

/// Returns the live relays, including this relay even if its announcement has expired.
pub(super) async fn announce(
    db: &Session,
    owner: OwnerId,
    ttl: Duration,
    announcement: &Announcement,
    name: &str,
) -> Result<Relays, DbErr> {
    let announced = Announced {
        owner: owner.as_uuid(),
        name,
        ttl_micros: micros(ttl),
        announcement,
    };
    let tx = db.begin().await?;
    db.execute(sql::announce(&db.dialect, announced)).await?;
    let rows = db.all(sql::count(&db.dialect, announced)).await?;
    tx.commit().await?;
    let mut relays = Relays::default();
    relays.count(announcement.health, 1);
    let mut expired = 0;
    for row in rows {
        let count = |column| -> Result<u32, DbErr> {
            let count: i64 = row.try_get("", column)?;
            Ok(u32::try_from(count).unwrap_or_default())
        };
        relays.count(health(row.try_get("", "fitness")?), count("relays")?);
        relays.disagreeing += count("disagreeing")?;
        expired += count("expired")?;
    }
    if expired > 0 {
        // Outside the transaction, concurrent announcements cannot deadlock.
        db.execute(sql::delete_expired(&db.dialect, announced.owner))
            .await?;
    }
    Ok(relays)
}

pub(super) async fn alive(db: &Session) -> Result<Vec<LiveRelay>, DbErr> {
    let read = |row: &QueryResult| {
        Ok(LiveRelay {
            owner: owner(row)?,
            name: row.try_get("", "name")?,
            health: health(row.try_get("", "fitness")?),
            expires_in: since(row.try_get("", "now_micros")?, row.try_get("", "expires_micros")?),
            registration: registration(row)?,
            trouble: trouble(row)?,
        })
    };
    db.read(sql::registered(&db.dialect, true), read).await
}

pub(super) async fn expired(db: &Session) -> Result<Vec<ExpiredRelay>, DbErr> {
    let read = |row: &QueryResult| {
        Ok(ExpiredRelay {
            owner: owner(row)?,
            name: row.try_get("", "name")?,
            expired_for: since(row.try_get("", "expires_micros")?, row.try_get("", "now_micros")?),
            registration: registration(row)?,
            trouble: trouble(row)?,
        })
    };
    db.read(sql::registered(&db.dialect, false), read).await
}

fn owner(row: &QueryResult) -> Result<OwnerId, DbErr> {
    row.try_get::<Uuid>("", "owner").map(OwnerId::from)
}

/// Health numbers of a newer version are unknown here; the relay counts as alive.
fn health(number: i64) -> RelayHealth {
    RelayHealth::ALL
        .into_iter()
        .find(|health| i64::from(health.number()) == number)
        .unwrap_or_default()
}

fn registration(row: &QueryResult) -> Result<Registration, DbErr> {
    let text = |column| -> Result<Option<String>, DbErr> {
        let bytes: Option<Vec<u8>> = row.try_get("", column)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    };
    let destination = match (text("stream")?, text("subjects")?, text("source")?) {
        (Some(stream), Some(subjects), Some(source)) => {
            let (stream, instance) = match stream.split_once(sql::INSTANCE) {
                Some((stream, instance)) => (stream.to_owned(), Some(instance.to_owned())),
                None => (stream, None),
            };
            Some(Destination {
                stream,
                instance,
                subjects,
                source,
            })
        }
        _ => None,
    };
    let mode = match row.try_get::<Option<i64>>("", "mode")? {
        Some(number) if number == i64::from(RelayMode::Log as u8) => RelayMode::Log,
        _ => RelayMode::Polling,
    };
    let retention: Option<i64> = row.try_get("", "retention_seconds")?;
    let retention = retention.map(|seconds| match u64::try_from(seconds) {
        Ok(0) => Retention::Delete,
        Ok(seconds) => Retention::KeepFor(Duration::from_secs(seconds)),
        Err(_) => Retention::Keep,
    });
    let version = row.try_get("", "version")?;
    Ok(Registration::new(mode, destination, retention).of_version(version))
}

fn trouble(row: &QueryResult) -> Result<Option<RelayTrouble>, DbErr> {
    let class: Option<String> = row.try_get("", "error_class")?;
    let Some(class) = class else { return Ok(None) };
    let began: Option<i64> = row.try_get("", "failing_micros")?;
    let now: i64 = row.try_get("", "now_micros")?;
    let error: Option<String> = row.try_get("", "error")?;
    Ok(Some(RelayTrouble {
        class: TroubleClass::parse(&class)
            .unwrap_or(TroubleClass::Broker(outbox_core::FailureClass::Unclassified)),
        error: error.unwrap_or_default(),
        failing_for: since(began.unwrap_or(now), now),
    }))
}
