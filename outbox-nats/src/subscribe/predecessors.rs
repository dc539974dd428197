//! Checks whether a stream holds earlier messages of an aggregate, from the consumer's start on.
//!
//! Invariant: the result is "no earlier message" only if all of these conditions hold:
//!
//! - The message is on the default subject of its own aggregate.
//! - The aggregate type has no fixed subjects, and this program has no shards.
//! - The subjects of all linked event types were read, with and without strong mode.
//!
//! Only whole subjects are read: a server finds the first message of a subject at once, but scans
//! the stream for a pattern. The leader answers, because a replica may lag.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{RawMessageErrorKind, Stream};
use futures_util::future::try_join_all;
use outbox_core::{Catalogue, Incoming, SubscriberError};
use tokio::time::timeout;

use crate::stream::subject::{SubjectPrefix, decode_token, encode_token, is_shard};
use crate::subscribe::consumer::Durable;
use crate::subscribe::failure::interrupted;

pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Predecessors {
    stream: Stream,
    prefix: SubjectPrefix,
    events: HashMap<&'static str, BTreeSet<&'static str>>,
    /// Aggregate types with fixed subjects, which do not name the aggregate.
    scattered: HashSet<&'static str>,
    /// Whether this program has shards. A subject may then hold messages of several aggregates.
    has_shards: bool,
    started_at: DeliverPolicy,
    /// Bounds of the start's stream sequence, if the consumer starts at a time.
    started: Mutex<(u64, u64)>,
}

impl Predecessors {
    pub(crate) fn new(durable: &Durable, started_at: DeliverPolicy) -> Self {
        let linked: Vec<_> = Catalogue::linked()
            .map(|all| all.iter().collect())
            .unwrap_or_default();
        let (mut events, mut scattered) = (HashMap::<_, BTreeSet<_>>::new(), HashSet::new());
        for event in linked.into_iter().chain(durable.spec.events.iter().copied()) {
            events.entry(event.aggregate).or_default().insert(event.name);
            if event.subject.is_some() {
                scattered.insert(event.aggregate);
            }
        }
        let state = &durable.stream.cached_info().state;
        let started = (state.first_sequence.max(1), state.last_sequence + 1);
        Self {
            stream: durable.stream.clone(),
            prefix: durable.prefix.clone(),
            events,
            scattered,
            has_shards: durable.has_shards,
            started_at,
            started: Mutex::new(started),
        }
    }

    /// Sends one request for each event type of the aggregate plus one, all at once. A start time
    /// is first resolved to a stream sequence.
    pub(crate) async fn exist(&self, incoming: &Incoming) -> Result<bool, SubscriberError> {
        let Some(subjects) = self.subjects_of_aggregate(&incoming.subject) else {
            return Ok(true);
        };
        let asked = async {
            let from = self.start().await?;
            let first = try_join_all(
                subjects
                    .iter()
                    .map(|subject| first_on(&self.stream, subject, from)),
            )
            .await?;
            Ok(first
                .into_iter()
                .flatten()
                .any(|first| first.sequence < incoming.stream_sequence))
        };
        timeout(ANSWER_MAX, asked).await.unwrap_or_else(|_| {
            Err(SubscriberError::Interrupted {
                context: format!(
                    "no answer about the first message of an aggregate; grant this user the permission to publish on `$JS.API.STREAM.MSG.GET.{}`",
                    self.stream.cached_info().config.name
                ),
                source: None,
            })
        })
    }

    fn subjects_of_aggregate(&self, subject: &str) -> Option<Vec<String>> {
        let rest = subject.strip_prefix(self.prefix.as_str())?.strip_prefix('.')?;
        let tokens: Vec<_> = rest.split('.').collect();
        let ([aggregate, id] | [aggregate, id, _]) = tokens.as_slice() else {
            return None;
        };
        let aggregate_type = decode_token(aggregate)?;
        // The number of former shards is unknown, so any shard may hold messages of the aggregate.
        if self.has_shards || is_shard(id) {
            return None;
        }
        if self.scattered.contains(&*aggregate_type) {
            return None;
        }
        let fenced = format!("{}.{aggregate}.{id}", self.prefix);
        let of_type = |name: &&str| match *name {
            // The subject's wildcard includes event types that this program does not know.
            "*" => format!("{fenced}.*"),
            name => format!("{fenced}.{}", encode_token(name)),
        };
        let mut subjects: Vec<_> = self.events.get(&*aggregate_type)?.iter().map(of_type).collect();
        subjects.push(fenced);
        Some(subjects)
    }

    async fn start(&self) -> Result<u64, SubscriberError> {
        match &self.started_at {
            DeliverPolicy::ByStartSequence { start_sequence } => Ok(*start_sequence),
            DeliverPolicy::ByStartTime { start_time } => {
                self.first_that_is_not(|message| message.time < *start_time).await
            }
            _ => Ok(1),
        }
    }

    /// Finds the start's stream sequence by binary search, because storage times grow with stream
    /// sequences. Sends at most one request for each doubling of the stream, over all calls.
    async fn first_that_is_not(
        &self,
        older: impl Fn(&StreamMessage) -> bool,
    ) -> Result<u64, SubscriberError> {
        loop {
            let (low, high) = *self.between();
            if low >= high {
                return Ok(low);
            }
            let middle = low + (high - low) / 2;
            let found = first_on(&self.stream, ">", middle).await?;
            let mut between = self.between();
            match found {
                Some(message) if older(&message) => between.0 = between.0.max(message.sequence + 1),
                _ => between.1 = between.1.min(middle),
            }
        }
    }

    fn between(&self) -> MutexGuard<'_, (u64, u64)> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) async fn first_on(
    stream: &Stream,
    subject: &str,
    from: u64,
) -> Result<Option<StreamMessage>, SubscriberError> {
    match stream.get_first_raw_message_by_subject(subject, from).await {
        Ok(first) => Ok(Some(first)),
        Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(interrupted(
            "the first message of an aggregate cannot be read",
            error,
        )),
    }
}
