//! Reads once a second what the processes of a consumer have asked for, answers by it, and has this process's own part of it restored.
//!
//! Invariants: that nobody has asked is said only after the list was the same in readings over [`HEALS`], none of them further from the next than [`SETTLES`]:
//! no entry that was relied on can have come and gone between two. One task reads for all, so neither deliveries nor failures cause requests. It ends with the
//! last delivery of the subscription. Absent here: the list itself (`asked`), and what must be restored (`consumer`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::SubscriberError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::asked::{Asked, FRESH, HEALS, SETTLES};
use crate::consumer::Durable;
use crate::filters::filters_of;

/// Longest wait for readings that agree, and for a request.
const PATIENCE: Duration = Duration::from_secs(8);

/// What the server said last.
#[derive(Debug, Clone, Default)]
enum Reading {
    /// Nothing yet.
    #[default]
    None,
    /// The list, when it was asked for, and since when it has been the same.
    List {
        asked: Arc<Asked>,
        at: Instant,
        since: Instant,
    },
    /// Why there is no answer.
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

/// Answers whether somebody has asked for a message, by what the server said a moment ago.
#[derive(Debug)]
pub(crate) struct Oracle {
    /// What this process has asked for.
    own: HashSet<String>,
    consumer: String,
    reading: watch::Receiver<Reading>,
    reader: JoinHandle<()>,
}

impl Drop for Oracle {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Oracle {
    pub(crate) fn new(durable: Durable) -> Self {
        let (sender, reading) = watch::channel(Reading::default());
        Self {
            own: durable
                .spec
                .events
                .iter()
                .map(|event| event.event_type())
                .collect(),
            consumer: durable.spec.name.clone(),
            reading,
            reader: tokio::spawn(read_on(durable, sender)),
        }
    }

    /// Waits for the next answer of the server at most, and for [`HEALS`] after a change of the list or of processes.
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
                return Err(self.unknown("nobody reads any more"));
            }
        }
        Err(self.unknown("the list is changed, or the server is slow"))
    }

    fn unknown(&self, why: &str) -> SubscriberError {
        SubscriberError::Interrupted {
            context: format!(
                "what consumer `{}` was asked for is not known: {why}",
                self.consumer
            ),
            source: None,
        }
    }
}

async fn read_on(durable: Durable, reading: watch::Sender<Reading>) {
    let name = &durable.spec.name;
    // Why the consumer could not be restored, so that it is logged once.
    let mut refused = None;
    loop {
        // Before the question: what is written after it may not be in the answer.
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
                        "what this process wants was undone, and could not be restored"
                    );
                }
                refused = why;
            }
            // The subscription finds that out, and says so.
            Ok(None) => _ = reading.send_replace(Reading::Failed("it was deleted".into())),
            Err(error) => _ = reading.send_replace(Reading::Failed(error.to_string().into())),
        }
        sleep_until(now + FRESH).await;
    }
}
