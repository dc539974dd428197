//! Deduplication in a key-value bucket, for handlers whose effects live outside their database.
//!
//! A bucket is a stream with one message per subject, and the stream sequence of a message is its revision. Every write names the revision that it replaces, and
//! the server refuses it if another write came first. That makes claims exclusive, and the revision of a claim is its fence. Reads ask the stream's leader,
//! because a replica may not know the last write. The server removes old keys.
//!
//! Invariants: every write names a revision, except writes to the clock. The age of a claim is measured between two time stamps of the server, so the clocks of
//! the processes do not matter.
//!
//! | value of `<consumer>.<event id>` | means |
//! |---|---|
//! | `claimed <milliseconds>` | claimed for so long, from the time the server stored it |
//! | `done <revision>` | completed, by the claim of that revision |
//! | none, or a delete marker | free |
//!
//! Servers before 2.11 have no time to live per key, so a key lives as long as the bucket says (`max_age`), counted from its last change.

mod bucket;

use std::time::{Duration, SystemTime};

use async_nats::Client;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::context::{Context, ContextBuilder, PublishErrorKind};
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use bytes::Bytes;
use outbox_core::dedup::{ClaimToken, DedupFuture, DedupKey, DedupStore, DedupStoreError, StoreClaim};
use tokio::time::timeout;

use crate::publish::outcome::is_refused_expectation;
use crate::stream::message;
use crate::stream::provision::{self, ProvisionError};
use crate::stream::subject::encode_token;

pub use bucket::DedupBucketSpec;

/// Writes that others may overtake before we take the claim for theirs.
const ROUNDS_MAX: u32 = 4;

/// A subject that is written to learn the server's time. It has one token and keys have two, so it cannot be a key.
const CLOCK: &str = "clock";

const OPERATION: &str = "KV-Operation";

/// A [`DedupStore`] in a key-value bucket of NATS. Works with nats-server 2.9 and newer.
///
/// The user needs permission to publish on `$KV.<bucket>.>`, `$JS.API.STREAM.MSG.GET.KV_<bucket>` and `$JS.API.STREAM.INFO.KV_<bucket>`,
/// and to create the bucket on `$JS.API.STREAM.CREATE.KV_<bucket>`. A claim is one request, or three when there is a claim already; each
/// method ends within 5 s ([`Self::with_timeout`]). A bucket of one replica forgets what it had not yet written to disk when its server loses
/// power.
#[derive(Debug, Clone)]
pub struct KvDedupStore {
    context: Context,
    bucket: String,
    timeout: Duration,
}

/// The state of a key.
enum Entry {
    Free {
        revision: u64,
    },
    Claimed {
        revision: u64,
        since: SystemTime,
        lease: Duration,
    },
    Done {
        token: u64,
    },
}

impl KvDedupStore {
    /// Opens the bucket, and makes it unless it exists ([`DedupBucketSpec::provisioning`]). Safe to run in many processes at once.
    ///
    /// # Errors
    ///
    /// [`ProvisionError`] names the value seen, the value needed and the remedy; its streams are called `KV_<bucket>`. Only
    /// [`ProvisionError::Unavailable`] may pass by itself.
    pub async fn open(client: Client, spec: &DedupBucketSpec) -> Result<Self, ProvisionError> {
        let store = Self {
            context: ContextBuilder::new()
                .timeout(provision::REQUEST_TIMEOUT)
                .ack_timeout(provision::REQUEST_TIMEOUT)
                .build(client),
            bucket: spec.bucket.clone(),
            timeout: provision::REQUEST_TIMEOUT,
        };
        bucket::provision(&store.context, spec).await?;
        Ok(store)
    }

    /// Sets the longest time that a method takes; at most, and by default, 5 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(provision::REQUEST_TIMEOUT);
        self
    }

    fn stream(&self) -> String {
        bucket::stream_name(&self.bucket)
    }

    fn subject(&self, key: &DedupKey) -> String {
        format!(
            "$KV.{}.{}.{}",
            self.bucket,
            encode_token(&key.consumer),
            key.event_id
        )
    }

    /// Writes if the last revision is the expected one, and returns the new revision. After an error or a crash the value may be written.
    async fn put(
        &self,
        subject: &str,
        message: PublishMessage,
        expected: u64,
    ) -> Result<Option<u64>, DedupStoreError> {
        let message = message
            .expected_stream(self.stream())
            .header(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string().as_str());
        self.send(subject, message).await
    }

    async fn send(&self, subject: &str, message: PublishMessage) -> Result<Option<u64>, DedupStoreError> {
        let sent = match self.context.send_publish(subject.to_owned(), message).await {
            Ok(acknowledgement) => acknowledgement.await,
            Err(error) => Err(error),
        };
        match sent {
            Ok(acknowledgement) => Ok(Some(acknowledgement.sequence)),
            Err(error) if is_refused_expectation(&error) => Ok(None),
            Err(error) => {
                let context = match error.kind() {
                    PublishErrorKind::StreamNotFound => {
                        format!("no stream answers for bucket `{}`; does it exist?", self.bucket)
                    }
                    _ => format!("bucket `{}` did not take `{subject}`", self.bucket),
                };
                Err(DedupStoreError::unavailable(context, Some(error.into())))
            }
        }
    }

    async fn last(&self, subject: &str) -> Result<Option<StreamMessage>, DedupStoreError> {
        let last = message::last(&self.context, &self.stream(), subject).await;
        last.map_err(|error| {
            let context = format!("`{subject}` cannot be read from bucket `{}`", self.bucket);
            DedupStoreError::unavailable(context, Some(error))
        })
    }

    async fn entry(&self, subject: &str) -> Result<Entry, DedupStoreError> {
        let Some(message) = self.last(subject).await? else {
            return Ok(Entry::Free { revision: 0 });
        };
        let revision = message.sequence;
        if message.headers.get(OPERATION).is_some() {
            return Ok(Entry::Free { revision });
        }
        let value = std::str::from_utf8(&message.payload).unwrap_or_default();
        let entry = match value.split_once(' ') {
            Some(("claimed", lease)) => lease.parse().ok().map(|lease| Entry::Claimed {
                revision,
                since: message.time.into(),
                lease: Duration::from_millis(lease),
            }),
            Some(("done", token)) => token.parse().ok().map(|token| Entry::Done { token }),
            _ => None,
        };
        entry.ok_or_else(|| {
            let context = format!(
                "`{subject}` holds something else than a claim; use a bucket of its own for deduplication"
            );
            DedupStoreError::configuration(context, None)
        })
    }

    /// The server's time, or a moment before it.
    async fn now(&self) -> Result<Option<SystemTime>, DedupStoreError> {
        let subject = format!("$KV.{}.{CLOCK}", self.bucket);
        self.send(&subject, PublishMessage::build()).await?;
        // Another process may have written it again since. A later time is as good.
        Ok(self.last(&subject).await?.map(|message| message.time.into()))
    }

    async fn has_passed(&self, since: SystemTime, lease: Duration) -> Result<bool, DedupStoreError> {
        let age = self.now().await?.and_then(|now| now.duration_since(since).ok());
        Ok(age.is_some_and(|age| age >= lease))
    }

    async fn try_claim(&self, subject: &str, lease: Duration) -> Result<StoreClaim, DedupStoreError> {
        let value = Bytes::from(format!("claimed {}", lease.as_millis().max(1)));
        let mut expected = 0;
        for _ in 0..ROUNDS_MAX {
            let message = PublishMessage::build().payload(value.clone());
            if let Some(revision) = self.put(subject, message, expected).await? {
                return Ok(StoreClaim::Mine(ClaimToken::new(u128::from(revision))));
            }
            expected = match self.entry(subject).await? {
                Entry::Free { revision } => revision,
                Entry::Done { .. } => return Ok(StoreClaim::Done),
                Entry::Claimed {
                    revision,
                    since,
                    lease,
                } => {
                    if !self.has_passed(since, lease).await? {
                        return Ok(StoreClaim::InProgress);
                    }
                    revision
                }
            };
        }
        // Another process was faster each time.
        Ok(StoreClaim::InProgress)
    }

    async fn try_complete(&self, subject: &str, token: ClaimToken) -> Result<bool, DedupStoreError> {
        let token = revision_of(token);
        let value = Bytes::from(format!("done {token}"));
        let mut expected = token;
        loop {
            let message = PublishMessage::build().payload(value.clone());
            if self.put(subject, message, expected).await?.is_some() {
                return Ok(true);
            }
            expected = match self.entry(subject).await? {
                // An earlier call whose answer was lost.
                Entry::Done { token: by } => return Ok(by == token),
                // Nobody holds the claim: a process that had taken it over has released it, or the key has expired.
                Entry::Free { revision } => revision,
                Entry::Claimed {
                    revision,
                    since,
                    lease,
                } => {
                    if revision != token && !self.has_passed(since, lease).await? {
                        return Ok(false);
                    }
                    revision
                }
            };
        }
    }

    async fn bounded<T>(
        &self,
        operation: impl Future<Output = Result<T, DedupStoreError>>,
    ) -> Result<T, DedupStoreError> {
        timeout(self.timeout, operation).await.unwrap_or_else(|elapsed| {
            let context = format!(
                "bucket `{}` did not answer within {:?}",
                self.bucket, self.timeout
            );
            Err(DedupStoreError::unavailable(context, Some(elapsed.into())))
        })
    }

    async fn try_preflight(&self, keep: Duration) -> Result<Vec<String>, DedupStoreError> {
        let found = provision::read(&self.context, &self.stream()).await;
        let seen = found
            .and_then(|seen| {
                seen.ok_or_else(|| bucket::missing(&DedupBucketSpec::default().bucket(&self.bucket)))
            })
            .map_err(|error| match error {
                ProvisionError::Unavailable { .. } => {
                    DedupStoreError::unavailable(format!("bucket `{}`", self.bucket), Some(error.into()))
                }
                _ => DedupStoreError::configuration(format!("bucket `{}`", self.bucket), Some(error.into())),
            })?;
        bucket::judge(&self.bucket, &seen, keep)
    }
}

/// `retention` is not used by [`complete`](DedupStore::complete), because the bucket decides. [`preflight`](DedupStore::preflight) compares it with `max_age`.
impl DedupStore for KvDedupStore {
    fn claim<'a>(&'a self, key: &'a DedupKey, lease: Duration) -> DedupFuture<'a, StoreClaim> {
        Box::pin(async move { self.bounded(self.try_claim(&self.subject(key), lease)).await })
    }

    fn complete<'a>(&'a self, key: &'a DedupKey, token: ClaimToken, _: Duration) -> DedupFuture<'a, bool> {
        Box::pin(async move { self.bounded(self.try_complete(&self.subject(key), token)).await })
    }

    fn release<'a>(&'a self, key: &'a DedupKey, token: ClaimToken) -> DedupFuture<'a, ()> {
        Box::pin(async move {
            // The delete marker of key-value clients, so that they understand it.
            let marker = PublishMessage::build().header(OPERATION, "DEL");
            let subject = self.subject(key);
            self.bounded(self.put(&subject, marker, revision_of(token)))
                .await
                .map(drop)
        })
    }

    fn preflight(&self, keep: Duration) -> DedupFuture<'_, Vec<String>> {
        Box::pin(self.bounded(self.try_preflight(keep)))
    }
}

/// The revision of a claim. A token of another store becomes a revision that no claim has.
fn revision_of(token: ClaimToken) -> u64 {
    u64::try_from(token.get()).unwrap_or(u64::MAX)
}
