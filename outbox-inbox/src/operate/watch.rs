//! Updates the gauges of consumers periodically.
//!
//! A gauge is NaN after a failed update or the end of the watch.

use std::time::Duration;

use outbox_core::{ConsumerStanding, Subscriber};
use sea_orm::DatabaseConnection;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::interval::Rounds;
use super::rows;
use crate::dedup::sql::InboxSql;
use crate::handler::describe;
use crate::telemetry::{self, Watched};

const LOOK_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Watch {
    db: DatabaseConnection,
    sql: InboxSql,
    consumers: Vec<String>,
    is_blind: bool,
}

impl Watch {
    pub(crate) fn new(db: DatabaseConnection, sql: InboxSql, consumers: Vec<String>) -> Self {
        telemetry::describe();
        Self {
            db,
            sql,
            consumers,
            is_blind: false,
        }
    }

    pub(crate) async fn run<S: Subscriber>(
        mut self,
        subscriber: &S,
        every: Duration,
        stop: CancellationToken,
    ) {
        let rounds = Rounds { every, stop };
        self.look(subscriber, &rounds).await;
        while rounds.pause(0.9..1.0).await {
            self.look(subscriber, &rounds).await;
        }
    }

    async fn look<S: Subscriber>(&mut self, subscriber: &S, rounds: &Rounds) {
        let mut trouble = None;
        for consumer in &self.consumers {
            let Some(standing) = rounds.answer(bounded(subscriber.standing(consumer))).await else {
                return;
            };
            let (db, sql, of) = (self.db.clone(), self.sql.clone(), consumer.clone());
            let counting = async move { bounded(rows::letters(&db, &sql, &[of])).await };
            let Some(letters) = rounds.answer(outbox_sea_orm::detached(counting)).await else {
                return;
            };
            let mut watched = Watched::default();
            match standing {
                Ok(standing) => on_stream(&mut watched, standing.as_ref()),
                Err(error) => trouble = Some(error),
            }
            match letters {
                Ok(letters) => watched.dead_letters = letters.first().map(|(open, marked)| open + marked),
                Err(error) => trouble = Some(error),
            }
            telemetry::watched(consumer, &watched);
        }
        if let Some(error) = &trouble
            && !self.is_blind
        {
            tracing::warn!(error, "consumer lag is unknown, its gauges are NaN");
        }
        self.is_blind = trouble.is_some();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for consumer in &self.consumers {
            telemetry::watched(consumer, &Watched::default());
        }
    }
}

fn on_stream(watched: &mut Watched, standing: Option<&ConsumerStanding>) {
    let Some(standing) = standing else { return };
    watched.undelivered = Some(standing.undelivered);
    watched.unacknowledged = Some(standing.unacknowledged);
    let nothing_waits = standing.undelivered == 0 && standing.unacknowledged == 0;
    watched.oldest_age = standing.oldest_age.or(nothing_waits.then_some(Duration::ZERO));
}

async fn bounded<T, E: std::error::Error + 'static>(
    look: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match timeout(LOOK_MAX, look).await {
        Ok(looked) => looked.map_err(|error| describe(&error)),
        Err(_) => Err(format!("no answer within {LOOK_MAX:?}")),
    }
}
