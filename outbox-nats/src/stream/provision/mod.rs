//! Creates or checks the event stream.
//!
//! Invariants: repeated or concurrent runs change nothing more. No setting is lowered and nothing
//! is deleted. After `Ok` the stream captures every subject of the given events. With
//! [`Provisioning::VerifyOnly`] nothing is written.

mod error;
mod plan;

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::context::{Context, ContextBuilder, CreateStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use outbox_core::{Catalogue, EventDescriptor};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::stream::preflight;
use crate::stream::subject::without_covered;
use crate::stream::{EventStream, Provisioning};

pub use error::ProvisionError;

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before a request is repeated. While a cluster elects the leader of a new stream, requests
/// are lost.
const ASK_AGAIN: Duration = Duration::from_secs(1);

pub(crate) const ROUNDS_MAX: u32 = 20;

/// Pause before a change is read back: a process that read the stream earlier may overwrite the
/// change.
pub(crate) const SETTLE: Duration = Duration::from_millis(200);

/// The result of [`EventStream::provision`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamReport {
    /// Whether this call created the stream.
    pub created: bool,
    /// Subjects that this call added to an existing stream.
    pub subjects_added: Vec<String>,
    /// Settings that may lose or repeat messages. The call logs the settings and does not change
    /// them.
    pub warnings: Vec<String>,
}

impl EventStream {
    /// Ensures that the stream exists, has safe settings, and captures the subjects of all events
    /// linked into this program ([`Catalogue::linked`]).
    ///
    /// Call `provision` at the start of every relay; concurrent calls are safe. With
    /// [`Provisioning::Create`], missing subjects are added to an existing stream and a shorter
    /// duplicate window is raised; nothing else changes.
    ///
    /// A call usually sends two or three requests, each up to 5 s. If other processes keep changing
    /// the stream, the call fails after 20 rounds of two requests
    /// ([`ProvisionError::Unavailable`]). A cancelled call leaves at most a stream that the next
    /// call completes.
    ///
    /// # Errors
    ///
    /// [`ProvisionError`]. Only [`ProvisionError::Unavailable`] may be temporary.
    pub async fn provision(&self, client: &Client) -> Result<StreamReport, ProvisionError> {
        let events = Catalogue::linked().map_err(|source| ProvisionError::Misfit {
            problem: format!("the events of stream `{}` cannot be listed", self.name),
            source: Some(source.into()),
        })?;
        self.provision_for(client, events.iter()).await
    }

    /// Returns the `nats` command that creates this stream, with every setting that
    /// [`provision`](Self::provision) requires. The command lacks the subjects of events: add these
    /// subjects with [`with_subject`](Self::with_subject).
    #[must_use]
    pub fn add_command(&self) -> String {
        error::add_command(self, &self.wanted_subjects(&[]))
    }

    /// Provisions as [`provision`](Self::provision), for these events only.
    ///
    /// # Errors
    ///
    /// The same errors as [`provision`](Self::provision).
    pub async fn provision_for<'a>(
        &self,
        client: &Client,
        events: impl IntoIterator<Item = &'a EventDescriptor>,
    ) -> Result<StreamReport, ProvisionError> {
        self.check()?;
        let events: Vec<&EventDescriptor> = events.into_iter().collect();
        let wanted = self.wanted_subjects(&events);
        let context = ContextBuilder::new()
            .timeout(REQUEST_TIMEOUT)
            .build(client.clone());
        let mut report = StreamReport::default();
        for _ in 0..ROUNDS_MAX {
            let Some(mut seen) = read(&context, &self.name).await? else {
                if self.provisioning == Provisioning::VerifyOnly {
                    return Err(ProvisionError::missing(self, &wanted));
                }
                plan::check_captured(self, &wanted, &events)?;
                report.created |= create(&context, self, &wanted).await?;
                continue; // Read it back, also if another process was faster.
            };
            let plan = plan::compare(self, &seen.typed, &wanted, &events)?;
            if plan.is_empty() {
                report.warnings = preflight::warnings_of(&seen.typed, seen.clustered, self);
                for warning in &report.warnings {
                    tracing::warn!(stream = self.name, "{warning}");
                }
                return Ok(report);
            }
            if !plan.subjects_added.is_empty() {
                seen.raw["subjects"] = Value::from(plan.subjects.clone());
            }
            if plan.raise_duplicate_window {
                seen.raw["duplicate_window"] =
                    Value::from(u64::try_from(self.duplicate_window.as_nanos()).unwrap_or(u64::MAX));
            }
            update(&context, &self.name, &seen.raw).await?;
            tracing::info!(stream = self.name, added = ?plan.subjects_added, "stream updated");
            for subject in plan.subjects_added {
                if !report.subjects_added.contains(&subject) {
                    report.subjects_added.push(subject);
                }
            }
            sleep(SETTLE).await;
        }
        Err(ProvisionError::contended(&self.name))
    }

    fn wanted_subjects(&self, events: &[&EventDescriptor]) -> Vec<String> {
        let base = if self.subjects.is_empty() {
            vec![self.prefix.wildcard()]
        } else {
            self.subjects.clone()
        };
        without_covered(
            base.into_iter()
                .chain(events.iter().filter_map(|event| event.subject.map(str::to_owned))),
        )
    }

    fn to_config(&self, subjects: Vec<String>) -> Config {
        Config {
            name: self.name.clone(),
            subjects,
            retention: RetentionPolicy::Limits,
            storage: StorageType::File,
            discard: DiscardPolicy::New,
            duplicate_window: self.duplicate_window,
            max_age: self.max_age,
            max_bytes: self
                .max_bytes
                .map_or(-1, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
            max_messages: -1,
            num_replicas: self.replicas,
            description: Some("Events published by an outbox relay.".to_owned()),
            ..Config::default()
        }
    }

    /// Checks the description itself, without a server. [`provision`](Self::provision) begins with
    /// this check.
    ///
    /// # Errors
    ///
    /// [`ProvisionError::Misfit`] if the description contradicts itself.
    pub fn check(&self) -> Result<(), ProvisionError> {
        let name = self.name.escape_debug();
        let invalid =
            |reason| ProvisionError::misfit(format!("description of stream `{name}` is invalid: {reason}"));
        self.contradiction().map_or(Ok(()), |reason| Err(invalid(reason)))
    }
}

/// Settings of an existing stream. Their raw form is written back, so that settings unknown to this
/// client are kept.
pub(crate) struct Seen {
    pub(crate) typed: Config,
    raw: Value,
    pub(crate) clustered: bool,
}

pub(crate) async fn read(context: &Context, name: &str) -> Result<Option<Seen>, ProvisionError> {
    let ask = async || {
        loop {
            let request = context.request(format!("STREAM.INFO.{name}"), &());
            if let Ok(answer) = timeout(ASK_AGAIN, request).await {
                return answer.map_err(|source| ProvisionError::unavailable(name, source));
            }
        }
    };
    let mut info: Value = timeout(REQUEST_TIMEOUT, ask())
        .await
        .map_err(|silence| ProvisionError::unavailable(name, silence))??;
    match refusal(&info) {
        Some(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => return Ok(None),
        Some(source) => return Err(ProvisionError::refused(name, source)),
        None => {}
    }
    let clustered = info["cluster"]["name"].is_string();
    let raw = info["config"].take();
    // A newer server may send values that this client cannot parse.
    let typed =
        serde_json::from_value(raw.clone()).map_err(|source| ProvisionError::unreadable(name, source))?;
    Ok(Some(Seen {
        typed,
        raw,
        clustered,
    }))
}

async fn create(
    context: &Context,
    stream: &EventStream,
    subjects: &[String],
) -> Result<bool, ProvisionError> {
    let name = &stream.name;
    let Err(error) = context.create_stream(stream.to_config(subjects.to_vec())).await else {
        tracing::info!(stream = name, ?subjects, "stream created");
        return Ok(true);
    };
    match error.kind() {
        CreateStreamErrorKind::JetStream(refused) if refused.error_code() == ErrorCode::STREAM_NAME_EXIST => {
            // In a cluster, the name of a new stream is reserved shortly before the stream can be
            // read.
            sleep(SETTLE).await;
            Ok(false)
        }
        CreateStreamErrorKind::JetStream(refused) => {
            Err(refused_change(context, name, subjects, refused).await)
        }
        _ => Err(ProvisionError::unavailable(name, error)),
    }
}

async fn update(context: &Context, name: &str, config: &Value) -> Result<(), ProvisionError> {
    let answer: Value = context
        .request(format!("STREAM.UPDATE.{name}"), config)
        .await
        .map_err(|source| ProvisionError::unavailable(name, source))?;
    let Some(refused) = refusal(&answer) else {
        return Ok(());
    };
    let subjects: Vec<String> = serde_json::from_value(config["subjects"].clone()).unwrap_or_default();
    Err(refused_change(context, name, &subjects, refused).await)
}

fn refusal(answer: &Value) -> Option<jetstream::Error> {
    answer
        .get("error")
        .and_then(|error| serde_json::from_value(error.clone()).ok())
}

async fn refused_change(
    context: &Context,
    name: &str,
    subjects: &[String],
    source: jetstream::Error,
) -> ProvisionError {
    if source.error_code() == ErrorCode::STREAM_SUBJECT_OVERLAP {
        for subject in subjects {
            if let Ok(other) = context.stream_by_subject(subject).await
                && other != name
            {
                return ProvisionError::misfit(format!(
                    "subject `{subject}` of stream `{name}` overlaps with stream `{other}`; use that stream, or another subject prefix"
                ));
            }
        }
    }
    ProvisionError::refused(name, source)
}
