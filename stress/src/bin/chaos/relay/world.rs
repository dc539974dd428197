//! The database and the stream of a run.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use outbox_core::DomainEvent;
use outbox_log::{LogError, PostgresLog};
use outbox_sea_orm::{OutboxConfig, OutboxConnection};
use outbox_stress::patient;
use sea_orm::ConnectionTrait as _;

use super::Options;
use super::servers::Servers;
use super::written::Written;
use crate::Result;
use crate::servers::Ground;

const WRITERS: u32 = 4;
const TOGETHER: usize = 20;
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "account", name = "credited")]
pub(crate) struct Credited {
    #[domain_event(aggregate_id)]
    pub(crate) account: u32,
    pub(crate) number: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) ground: Ground,
    aggregates: u32,
    is_rough: bool,
    written: Arc<Mutex<Vec<Wrote>>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrote {
    pub(crate) event: Credited,
    pub(crate) is_certain: bool,
}

impl World {
    pub(crate) async fn make(options: &Options, servers: &Servers) -> Result<Self> {
        let ground = Ground::make(servers.database_url(), servers.nats_url(), 8).await?;
        outbox_sea_orm::migration::migrate_with(&ground.db, &ground.names).await?;
        Ok(Self {
            ground,
            aggregates: if options.small { 40 } else { 500 },
            is_rough: servers.own() > 0,
            written: Arc::default(),
        })
    }

    pub(crate) fn log(&self) -> std::result::Result<PostgresLog, LogError> {
        let Ground { db, place, names, .. } = &self.ground;
        let log = PostgresLog::new(db.clone(), &place.database_url)?.named(&place.name)?;
        Ok(log.with_names(names))
    }

    pub(crate) async fn record(&self, numbers: Range<u32>, time: Duration) -> Result<()> {
        let writers = (0..WRITERS).map(|writer| {
            let is_its = |number: &u32| number % self.aggregates % WRITERS == writer;
            let numbers: Vec<u32> = numbers.clone().filter(is_its).collect();
            self.write(numbers, time)
        });
        futures_util::future::try_join_all(writers).await.map(drop)
    }

    async fn write(&self, numbers: Vec<u32>, time: Duration) -> Result<()> {
        let config = OutboxConfig::default().with_names(self.ground.names.clone());
        let outbox = OutboxConnection::new(self.ground.db.clone(), config);
        let chunks = numbers.chunks(TOGETHER);
        let pause = time / u32::try_from(chunks.len().max(1))?;
        for chunk in chunks {
            let events: Vec<Credited> = chunk
                .iter()
                .map(|number| Credited {
                    account: number % self.aggregates,
                    number: *number,
                })
                .collect();
            let tx = self
                .patiently(async || {
                    let tx = outbox.begin().await?;
                    outbox_sea_orm::record(&tx, events.clone()).await?;
                    Ok(tx)
                })
                .await?;
            let committed = tx.commit().await;
            let is_certain = committed.is_ok();
            if !self.is_rough {
                committed?;
            }
            let wrote = events.into_iter().map(|event| Wrote { event, is_certain });
            self.wrote(|written| written.extend(wrote));
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    fn wrote<R>(&self, work: impl FnOnce(&mut Vec<Wrote>) -> R) -> R {
        work(&mut self.written.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) async fn execute(&self, sql: &str) -> Result<u64> {
        Ok(self.ground.db.execute_unprepared(sql).await?.rows_affected())
    }

    async fn patiently<R>(&self, mut attempt: impl AsyncFnMut() -> Result<R>) -> Result<R> {
        let began = Instant::now();
        loop {
            match attempt().await {
                Err(_) if self.is_rough && began.elapsed() < AGAIN_MAX => {}
                done => return done,
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Compares the stream with the writers' lists, without the tables.
    pub(crate) async fn compare(&self) -> Result<Written> {
        let written = self.wrote(|written| written.clone());
        let stream = &self.ground.stream;
        let payloads =
            self.patiently(async || patient::read_all(stream, |message| Ok(message.payload.to_vec())).await);
        Written::compare(&written, &payloads.await?)
    }

    /// Returns a lower bound of the missing messages. Reads the stream only if it may be complete.
    pub(crate) async fn missing(&self) -> Result<u64> {
        let certain = self.wrote(|written| written.iter().filter(|wrote| wrote.is_certain).count());
        let messages = async || Ok(self.ground.stream.get_info().await?.state.messages);
        match (certain as u64).checked_sub(self.patiently(messages).await?) {
            None | Some(0) => Ok(self.compare().await?.missing),
            Some(missing) => Ok(missing),
        }
    }

    pub(crate) async fn unsettled(&self) -> Result<u64> {
        let table = self.ground.table("outbox_messages");
        let sql = format!("SELECT count(*) AS n FROM {table} WHERE status <> 1");
        let rows = self.patiently(async || self.ground.query(&sql).await).await?;
        let n: i64 = rows.first().ok_or("a count returned no row")?.try_get("", "n")?;
        Ok(u64::try_from(n)?)
    }
}
