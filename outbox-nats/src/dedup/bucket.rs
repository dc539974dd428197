//! Creates or checks the bucket of [`super::KvDedupStore`].
//!
//! The bucket is created as a stream, because the client's own call for buckets fails on nats-server 2.9. Invariants: an existing bucket is never changed, and
//! with [`Provisioning::VerifyOnly`] nothing is written at all.

use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{Context, CreateStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use outbox_core::dedup::DedupStoreError;
use tokio::time::sleep;

use crate::stream::Provisioning;
use crate::stream::preflight::replicas;
use crate::stream::provision::{ProvisionError, ROUNDS_MAX, SETTLE, Seen, read};
use crate::stream::subject::{captures, is_plain_name};

/// The bucket that is needed. Start from the default and set what differs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DedupBucketSpec {
    /// Name of the bucket; `[A-Za-z0-9_-]`, at most 200 bytes. One for all consumers will do. Default `outbox-dedup`.
    pub bucket: String,
    /// Age at which keys are forgotten; zero for never. At least `InboxConfig::retention` (checked at the start) and longer than any lease.
    /// Used only when the bucket is created; an existing one keeps its own. Default 15 days.
    pub max_age: Duration,
    /// Copies in a cluster, 1 to 5. Used only when the bucket is created; an existing one keeps its own. Default 1.
    pub replicas: usize,
    /// Whether the bucket may be created. Default [`Provisioning::Create`].
    pub provisioning: Provisioning,
}

impl Default for DedupBucketSpec {
    fn default() -> Self {
        Self {
            bucket: "outbox-dedup".to_owned(),
            max_age: Duration::from_hours(15 * 24),
            replicas: 1,
            provisioning: Provisioning::default(),
        }
    }
}

impl DedupBucketSpec {
    outbox_core::__setters! {
        bucket: impl Into<String>,
        max_age: Duration,
        replicas: usize,
        provisioning: Provisioning,
    }

    fn check(&self) -> Result<(), ProvisionError> {
        let reason = if !is_plain_name(&self.bucket) || self.bucket.len() > 200 {
            "the bucket's name must be 1 to 200 characters of `[A-Za-z0-9_-]`"
        } else if !(1..=5).contains(&self.replicas) {
            "`replicas` must be 1 to 5"
        } else {
            return Ok(());
        };
        Err(ProvisionError::Spec {
            stream: stream_name(&self.bucket).escape_debug().to_string(),
            reason,
        })
    }

    /// The configuration that key-value clients give a new bucket.
    fn to_config(&self) -> Config {
        Config {
            name: stream_name(&self.bucket),
            subjects: vec![subjects(&self.bucket)],
            retention: RetentionPolicy::Limits,
            storage: StorageType::File,
            discard: DiscardPolicy::New,
            max_messages_per_subject: 1,
            max_messages: -1,
            max_age: self.max_age,
            max_bytes: -1,
            num_replicas: self.replicas,
            allow_rollup: true,
            deny_delete: true,
            allow_direct: true,
            description: Some("Events that consumers have handled outside their databases.".to_owned()),
            ..Config::default()
        }
    }
}

pub(super) fn stream_name(bucket: &str) -> String {
    format!("KV_{bucket}")
}

fn subjects(bucket: &str) -> String {
    format!("$KV.{bucket}.>")
}

/// Makes the bucket unless it exists, and checks it.
pub(super) async fn provision(context: &Context, spec: &DedupBucketSpec) -> Result<(), ProvisionError> {
    spec.check()?;
    let stream = stream_name(&spec.bucket);
    for _ in 0..ROUNDS_MAX {
        match read(context, &stream).await? {
            Some(seen) => return check(&spec.bucket, &seen.typed),
            None if spec.provisioning == Provisioning::VerifyOnly => return Err(missing(spec)),
            // Read it back, because another process may have been faster.
            None => create(context, spec).await?,
        }
    }
    Err(ProvisionError::contended(&stream))
}

async fn create(context: &Context, spec: &DedupBucketSpec) -> Result<(), ProvisionError> {
    let stream = stream_name(&spec.bucket);
    let Err(error) = context.create_stream(spec.to_config()).await else {
        tracing::info!(bucket = spec.bucket, "bucket created");
        return Ok(());
    };
    match error.kind() {
        CreateStreamErrorKind::JetStream(refused) if refused.error_code() == ErrorCode::STREAM_NAME_EXIST => {
            // In a cluster a name is taken a moment before the bucket can be read.
            sleep(SETTLE).await;
            Ok(())
        }
        CreateStreamErrorKind::JetStream(source) => Err(ProvisionError::refused(&stream, source)),
        _ => Err(ProvisionError::unavailable(&stream, error)),
    }
}

/// Refuses a bucket that could forget claims.
fn check(bucket: &str, seen: &Config) -> Result<(), ProvisionError> {
    let stream = stream_name(bucket);
    ProvisionError::check_retention(&stream, seen)?;
    if !captures(&seen.subjects, &subjects(bucket)) {
        return Err(ProvisionError::Uncaptured {
            stream,
            what: format!("bucket `{bucket}`"),
            subject: subjects(bucket),
            seen: seen.subjects.clone(),
        });
    }
    let bounded = seen.max_bytes > 0 || seen.max_messages > 0;
    if bounded && seen.discard != DiscardPolicy::New {
        return Err(ProvisionError::Setting {
            stream,
            setting: "discard",
            seen: "old".to_owned(),
            needed: "new: a full bucket must refuse claims instead of forgetting what is done",
        });
    }
    Ok(())
}

/// Whether a bucket remembers for long enough.
pub(super) fn judge(bucket: &str, seen: &Seen, keep: Duration) -> Result<Vec<String>, DedupStoreError> {
    let Seen {
        typed: seen,
        clustered,
        ..
    } = seen;
    check(bucket, seen)
        .map_err(|error| DedupStoreError::configuration(format!("bucket `{bucket}`"), Some(error.into())))?;
    if !seen.max_age.is_zero() && seen.max_age < keep {
        let context = format!(
            "bucket `{bucket}` forgets after {:?} what is to be remembered for {keep:?}; raise it with: nats stream edit {} --max-age={}s",
            seen.max_age,
            stream_name(bucket),
            keep.as_secs(),
        );
        return Err(DedupStoreError::configuration(context, None));
    }
    let mut warnings = Vec::new();
    if seen.storage == StorageType::Memory {
        warnings.push(format!(
            "bucket `{bucket}` is in memory: after a restart of the server events take effect again; make it anew with file storage"
        ));
    }
    if *clustered && seen.num_replicas < 3 {
        warnings.push(format!(
            "bucket `{bucket}` has {} in a cluster: the loss of one server stops its handlers or has events take effect again; raise it with: nats stream edit {} --replicas=3",
            replicas(seen.num_replicas),
            stream_name(bucket),
        ));
    }
    Ok(warnings)
}

pub(super) fn missing(spec: &DedupBucketSpec) -> ProvisionError {
    ProvisionError::Missing {
        stream: stream_name(&spec.bucket),
        command: format!(
            "nats kv add {} --history=1 --ttl={}s --storage=file --replicas={}",
            spec.bucket,
            spec.max_age.as_secs(),
            spec.replicas,
        ),
    }
}
