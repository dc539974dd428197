//! Creates or checks the stream that messages are stored on.
//!
//! Invariants: running it again, or in many processes at once, changes nothing more; no setting is ever lowered and nothing deleted; after
//! `Ok` every given event has a subject that the stream captures. With [`Provisioning::VerifyOnly`] nothing is written at all. Absent
//! here: consumers (`consumer`) and permissions.

mod error;
mod plan;

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::context::{Context, ContextBuilder, CreateStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use outbox_core::EventDescriptor;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::subject::{SubjectPrefix, covers, without_covered};

pub use error::ProvisionError;
pub use plan::StreamWarning;

/// Name of the stream unless configured otherwise.
pub const DEFAULT_STREAM: &str = "EVENTS";

/// Bound on one request to the server.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which a stream is asked about again. While a cluster elects the leader of a new stream it does not answer, not later either.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Rounds of reading and changing before we give up against processes that change the stream at the same time.
pub(crate) const ROUNDS_MAX: u32 = 20;

/// Time after which a change is read back. Updates have no condition in the protocol, so another process may have written over ours; it
/// read the stream before that, which is a matter of milliseconds.
pub(crate) const SETTLE: Duration = Duration::from_millis(200);

/// Whether this process may create and change streams and consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Provisioning {
    /// Create what is missing, add what is needed.
    #[default]
    Create,
    /// Change nothing; what is missing is an error that says how to create it. For servers where only operators may do so.
    VerifyOnly,
}

/// The stream that is needed. Start from the default and set what differs.
///
/// Storage is file, retention by limits and discard policy `new`. The first two are needed for deduplication to survive a restart of
/// the server; the last makes a full stream refuse messages, which then wait in the outbox, instead of dropping unread ones.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamSpec {
    /// Name of the stream; `[A-Za-z0-9_-]`, at most 255 bytes. Default `EVENTS`.
    pub name: String,
    /// First tokens of the default subjects. Default `events`.
    pub prefix: SubjectPrefix,
    /// Subjects to capture. Default: none given, which means `<prefix>.>`. Fixed subjects of the given events are added.
    pub subjects: Vec<String>,
    /// Time within which the server drops a second message with the same id. It should outlast the restart of a relay; each id costs
    /// the server 200 to 260 bytes of memory. Not above `max_age`. Default 10 min.
    pub duplicate_window: Duration,
    /// Age at which messages are deleted; zero for never. Consumers must have read them by then, and inboxes must remember ids at least
    /// as long. Only for creating; a shorter age of an existing stream is a warning. Default 14 days.
    pub max_age: Duration,
    /// Most bytes on the stream, `None` for no limit. Set it in production: a full disk stops the whole server, a full stream only its
    /// publishers. Only for creating. Default `None`.
    pub max_bytes: Option<u64>,
    /// Copies in a cluster, 1 to 5. Three survive the loss of a server. Only for creating; fewer copies of an existing stream are a warning.
    /// Default 1.
    pub replicas: usize,
    /// Whether the stream may be created and changed. Default [`Provisioning::Create`].
    pub provisioning: Provisioning,
}

impl Default for StreamSpec {
    fn default() -> Self {
        Self {
            name: DEFAULT_STREAM.to_owned(),
            prefix: SubjectPrefix::default(),
            subjects: Vec::new(),
            duplicate_window: Duration::from_mins(10),
            max_age: Duration::from_hours(14 * 24),
            max_bytes: None,
            replicas: 1,
            provisioning: Provisioning::default(),
        }
    }
}

impl StreamSpec {
    /// Sets [`Self::name`].
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets [`Self::prefix`].
    #[must_use]
    pub fn prefix(mut self, prefix: SubjectPrefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// Adds to [`Self::subjects`]; with the first one, `<prefix>.>` is not implied any more.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subjects.push(subject.into());
        self
    }

    /// Sets [`Self::duplicate_window`].
    #[must_use]
    pub fn duplicate_window(mut self, window: Duration) -> Self {
        self.duplicate_window = window;
        self
    }

    /// Sets [`Self::max_age`].
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = age;
        self
    }

    /// Sets [`Self::max_bytes`].
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Sets [`Self::replicas`].
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets [`Self::provisioning`].
    #[must_use]
    pub fn provisioning(mut self, provisioning: Provisioning) -> Self {
        self.provisioning = provisioning;
        self
    }

    /// The subjects of the spec and the fixed subjects of events.
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

    /// The configuration of a new stream.
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

    /// What is wrong with the spec itself, so that the message does not depend on the server's version.
    fn check(&self) -> Result<(), ProvisionError> {
        let reason = if !is_plain_name(&self.name) {
            "the name must be 1 to 255 characters of `[A-Za-z0-9_-]`"
        } else if !self.max_age.is_zero() && self.duplicate_window > self.max_age {
            "`duplicate_window` must not be above `max_age`"
        } else if !(1..=5).contains(&self.replicas) {
            "`replicas` must be 1 to 5"
        } else {
            return Ok(());
        };
        Err(ProvisionError::Spec {
            stream: self.name.escape_debug().to_string(),
            reason,
        })
    }
}

/// What [`provision_stream`] found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamReport {
    /// The stream did not exist and was created by this call.
    pub created: bool,
    /// Subjects that were added to an existing stream.
    pub subjects_added: Vec<String>,
    /// The duplicate window before it was raised, if it was.
    pub duplicate_window_before: Option<Duration>,
    /// Settings that work but may surprise; they are logged too.
    pub warnings: Vec<StreamWarning>,
}

/// Makes sure that the stream exists, is set up so that nothing gets lost, and captures the subjects of all `events`.
///
/// Call it at the start of every relay; pass the events of [`Catalogue::linked`](outbox_core::Catalogue::linked). It is safe to run in
/// many processes at once. An existing stream is checked; with [`Provisioning::Create`] missing subjects are added and a shorter
/// duplicate window is raised, and nothing else is touched. Ends within a few requests of 5 s each. Cancelling leaves at most a stream
/// that the next call completes.
///
/// # Errors
///
/// [`ProvisionError`] says what was seen, what is needed and what to do. Only [`ProvisionError::Unavailable`] and
/// [`ProvisionError::Contended`] may pass by themselves.
pub async fn provision_stream<'a>(
    client: &Client,
    spec: &StreamSpec,
    events: impl IntoIterator<Item = &'a EventDescriptor>,
) -> Result<StreamReport, ProvisionError> {
    spec.check()?;
    let events: Vec<&EventDescriptor> = events.into_iter().collect();
    let wanted = spec.wanted_subjects(&events);
    let context = ContextBuilder::new()
        .timeout(REQUEST_TIMEOUT)
        .build(client.clone());
    let mut report = StreamReport::default();
    for _ in 0..ROUNDS_MAX {
        let Some(mut seen) = read(&context, &spec.name).await? else {
            if spec.provisioning == Provisioning::VerifyOnly {
                return Err(ProvisionError::missing(spec, &wanted));
            }
            plan::check_captured(spec, &wanted, &events)?;
            report.created |= create(&context, spec, &wanted).await?;
            continue; // Read it back, also if another process was faster.
        };
        let plan = plan::compare(spec, &seen.typed, &wanted, &events)?;
        if plan.is_empty() {
            report.warnings = plan.warnings;
            for warning in &report.warnings {
                tracing::warn!(stream = spec.name, "{warning}");
            }
            return Ok(report);
        }
        if !plan.subjects_added.is_empty() {
            seen.raw["subjects"] = Value::from(plan.subjects.clone());
        }
        if plan.raise_duplicate_window {
            seen.raw["duplicate_window"] =
                Value::from(u64::try_from(spec.duplicate_window.as_nanos()).unwrap_or(u64::MAX));
            report
                .duplicate_window_before
                .get_or_insert(seen.typed.duplicate_window);
        }
        update(&context, spec, &seen.raw).await?;
        tracing::info!(stream = spec.name, added = ?plan.subjects_added, "stream updated");
        report.subjects_added.extend(plan.subjects_added);
        report.subjects_added.dedup();
        sleep(SETTLE).await;
    }
    Err(ProvisionError::Contended {
        stream: spec.name.clone(),
    })
}

/// A stream's configuration, twice: as our client understands it, and as the server sent it. The second is what is written back, so
/// that settings newer than our client survive.
pub(crate) struct Seen {
    pub(crate) typed: Config,
    raw: Value,
    /// Whether the stream's server is one of several.
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
    // A single server tells no name of a cluster.
    let clustered = info["cluster"]["name"].is_string();
    let raw = info["config"].take();
    let typed =
        serde_json::from_value(raw.clone()).map_err(|source| ProvisionError::unavailable(name, source))?;
    Ok(Some(Seen {
        typed,
        raw,
        clustered,
    }))
}

/// Whether this call created the stream; `false` if another process was faster.
async fn create(context: &Context, spec: &StreamSpec, subjects: &[String]) -> Result<bool, ProvisionError> {
    let Err(error) = context.create_stream(spec.to_config(subjects.to_vec())).await else {
        tracing::info!(stream = spec.name, ?subjects, "stream created");
        return Ok(true);
    };
    match error.kind() {
        CreateStreamErrorKind::JetStream(refused) if refused.error_code() == ErrorCode::STREAM_NAME_EXIST => {
            // In a cluster a name is taken a moment before the stream can be read.
            sleep(SETTLE).await;
            Ok(false)
        }
        CreateStreamErrorKind::JetStream(refused) => {
            Err(refused_change(context, spec, subjects, refused).await)
        }
        _ => Err(ProvisionError::unavailable(&spec.name, error)),
    }
}

async fn update(context: &Context, spec: &StreamSpec, config: &Value) -> Result<(), ProvisionError> {
    let answer: Value = context
        .request(format!("STREAM.UPDATE.{}", spec.name), config)
        .await
        .map_err(|source| ProvisionError::unavailable(&spec.name, source))?;
    let Some(refused) = refusal(&answer) else {
        return Ok(());
    };
    let subjects: Vec<String> = serde_json::from_value(config["subjects"].clone()).unwrap_or_default();
    Err(refused_change(context, spec, &subjects, refused).await)
}

/// The server's error, if the answer is one.
fn refusal(answer: &Value) -> Option<jetstream::Error> {
    answer
        .get("error")
        .and_then(|error| serde_json::from_value(error.clone()).ok())
}

/// Finds out who holds a subject that the server refused because of an overlap.
async fn refused_change(
    context: &Context,
    spec: &StreamSpec,
    subjects: &[String],
    source: jetstream::Error,
) -> ProvisionError {
    if source.error_code() == ErrorCode::STREAM_SUBJECT_OVERLAP {
        for subject in subjects {
            if let Ok(other) = context.stream_by_subject(subject).await
                && other != spec.name
            {
                return ProvisionError::SubjectTaken {
                    stream: spec.name.clone(),
                    subject: subject.clone(),
                    other,
                };
            }
        }
    }
    ProvisionError::refused(&spec.name, source)
}

/// Whether one of the subjects captures everything that matches `pattern`.
pub(crate) fn captures(subjects: &[String], pattern: &str) -> bool {
    subjects.iter().any(|subject| covers(subject, pattern))
}

/// A name that can be part of an API subject.
pub(crate) fn is_plain_name(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}
