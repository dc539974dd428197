//! Reads the list of requested event types of a consumer once a second, and restores this process's
//! entries.
//!
//! Invariants: the answer is "not requested" only if all readings of the last [`HEALS`] returned
//! the same list, at intervals of at most [`SETTLES`]. So no valid entry can appear and disappear
//! between two readings. One task reads the list for all queries; the task ends with the last
//! delivery of the subscription.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use outbox_core::SubscriberError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::subscribe::consumer::Durable;
use crate::subscribe::filters::filters_of;
use crate::subscribe::interest::{Asked, FRESH, HEALS, SETTLES};
use crate::subscribe::predecessors::Predecessors;

const PATIENCE: Duration = Duration::from_secs(8);

#[derive(Debug, Clone, Default)]
enum Reading {
    #[default]
    None,
    /// The list, the time of its request, and the time since which the list is unchanged.
    List {
        asked: Arc<Asked>,
        at: Instant,
        since: Instant,
    },
    Failed(Arc<str>),
}

impl Reading {
    fn followed_by(&self, asked: Asked, now: Instant) -> Self {
        let since = match self {
            Self::List {
                asked: before,
                at,
                since,
            } if **before == asked && now - *at <= SETTLES => *since,
            _ => now,
        };
        Self::List {
            asked: Arc::new(asked),
            at: now,
            since,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Oracle {
    own: HashSet<String>,
    consumer: String,
    pub(crate) predecessors: Predecessors,
    reading: watch::Receiver<Reading>,
    reader: JoinHandle<()>,
}

impl Drop for Oracle {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Oracle {
    pub(crate) fn new(durable: Durable, started_at: DeliverPolicy) -> Self {
        let (sender, reading) = watch::channel(Reading::default());
        Self {
            own: durable
                .spec
                .events
                .iter()
                .map(|event| event.event_type())
                .collect(),
            consumer: durable.spec.name.clone(),
            predecessors: Predecessors::new(&durable, started_at),
            reading,
            reader: tokio::spawn(read_on(durable, sender)),
        }
    }

    /// Waits at most for the next reading of the list or, after a change of the list, for
    /// [`HEALS`].
    pub(crate) async fn is_asked_for(
        &self,
        event_type: &str,
        subject: &str,
    ) -> Result<bool, SubscriberError> {
        if self.own.contains(event_type) {
            return Ok(true);
        }
        let (mut reading, asked_at) = (self.reading.clone(), Instant::now());
        while asked_at.elapsed() < PATIENCE {
            let read = reading.borrow_and_update().clone();
            match read {
                Reading::List { asked, at, since } if at >= asked_at || at.elapsed() < FRESH => {
                    if asked.names(event_type, subject) {
                        return Ok(true);
                    }
                    if at - since >= HEALS {
                        return Ok(false);
                    }
                }
                Reading::Failed(why) => return Err(self.unknown(&why)),
                _ => {}
            }
            if reading.changed().await.is_err() {
                return Err(self.unknown("the reading of the list has ended"));
            }
        }
        Err(self.unknown("the list has changed, or the server is slow"))
    }

    fn unknown(&self, why: &str) -> SubscriberError {
        SubscriberError::Interrupted {
            context: format!(
                "requested event types of consumer `{}` are unknown: {why}",
                self.consumer
            ),
            source: None,
        }
    }
}

async fn read_on(durable: Durable, reading: watch::Sender<Reading>) {
    let name = &durable.spec.name;
    let mut refused = None;
    loop {
        // The time is taken before the request, because the answer may lack later changes.
        let now = Instant::now();
        match durable.read().await {
            Ok(Some(config)) => {
                let filters = filters_of(&config.filter_subject, &config.filter_subjects);
                let asked = Asked::of(config.description.as_deref(), filters);
                reading.send_modify(|reading| *reading = reading.followed_by(asked, now));
                let restored = durable.restore(config).await;
                let why = restored.err().map(|error| error.to_string());
                if let Some(error) = why.as_ref().filter(|_| why != refused) {
                    tracing::error!(
                        consumer = name,
                        error,
                        "another program has changed this consumer, and the change could not be undone"
                    );
                }
                refused = why;
            }
            Ok(None) => _ = reading.send_replace(Reading::Failed("it was deleted".into())),
            Err(error) => _ = reading.send_replace(Reading::Failed(error.to_string().into())),
        }
        sleep_until(now + FRESH).await;
    }
}
