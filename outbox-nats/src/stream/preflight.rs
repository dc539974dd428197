//! Checks the stream before the first publish.
//!
//! Invariants: nothing is changed. A setting that prevents publishing is an error with the next
//! step. A setting that may lose or repeat messages is a warning.

use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{Config, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType};
use outbox_core::{FailureClass, PublishError};

use crate::connect::connection::Live;
use crate::stream::EventStream;
use crate::stream::subject::overlap;

/// Duplicate window that covers an ordinary outage plus the crash of a relay.
const WINDOW_WANTED: Duration = Duration::from_mins(10);

/// Minimum duplicate window: with a shorter window, a crash alone may repeat messages. Also the
/// server's default.
const WINDOW_NEEDED: Duration = Duration::from_mins(2);

const MESSAGE_BYTES: usize = 1024 * 1024;

pub(crate) struct Seen<'a> {
    pub(crate) stream: &'a Config,
    pub(crate) clustered: bool,
    pub(crate) max_payload: usize,
    pub(crate) version: &'a str,
    pub(crate) version_is_known: bool,
}

pub(crate) async fn check(
    live: &Live,
    wanted: &EventStream,
    denied: impl Fn(&str) -> bool,
) -> Result<(Vec<String>, String), PublishError> {
    let name = &wanted.name;
    let api = format!("$JS.API.STREAM.INFO.{name}");
    let stream = live.context.get_stream(name).await.map_err(|error| {
        let (class, context) = match error.kind() {
            GetStreamErrorKind::JetStream(refused) if refused.error_code() == ErrorCode::STREAM_NOT_FOUND => (
                FailureClass::Configuration,
                format!(
                    "stream `{name}` does not exist; call `EventStream::provision` first, or run: {}",
                    wanted.add_command()
                ),
            ),
            GetStreamErrorKind::Request if denied(&api) => (
                FailureClass::Configuration,
                format!("stream `{name}` cannot be checked; grant this user the permission to publish on `{api}`"),
            ),
            GetStreamErrorKind::Request => (
                FailureClass::Unknown,
                format!(
                    "no answer about stream `{name}`; check that the server has JetStream enabled and that this user may publish on `{api}`"
                ),
            ),
            GetStreamErrorKind::JetStream(refused) if refused.code() >= 500 => (
                FailureClass::Transient,
                format!("stream `{name}` cannot be read now"),
            ),
            _ => (
                FailureClass::Configuration,
                format!("stream `{name}` cannot be read"),
            ),
        };
        PublishError::new(class, context).with_source(error)
    })?;
    let info = stream.cached_info();
    let server = live.client.server_info();
    let seen = Seen {
        stream: &info.config,
        clustered: info
            .cluster
            .as_ref()
            .is_some_and(|cluster| cluster.name.is_some()),
        max_payload: server.max_payload,
        version: &server.version,
        version_is_known: live.client.is_server_compatible(2, 9, 0),
    };
    let warnings = judge(&seen, wanted)?;
    Ok((warnings, format!("created {}", info.created)))
}

pub(crate) fn judge(seen: &Seen<'_>, wanted: &EventStream) -> Result<Vec<String>, PublishError> {
    let Seen { stream, .. } = seen;
    let name = &wanted.name;
    let subjects = wanted.prefix.wildcard();
    let broken = |context: String| Err(PublishError::new(FailureClass::Configuration, context));
    if !wanted.is_captured_by(&stream.subjects) {
        return broken(format!(
            "stream `{name}` captures {}, and messages are published on `{subjects}`; call `EventStream::provision`, or correct the prefix",
            stream.subjects.join(", ")
        ));
    }
    if let Some(Unfit {
        setting,
        seen,
        needed,
    }) = unfit(stream, &subjects)
    {
        return broken(format!(
            "stream `{name}` has `{setting}` = {seen}; it must be {needed}"
        ));
    }
    Ok(warnings(seen, wanted))
}

/// A setting with which an acknowledged message is not stored as published.
pub(crate) struct Unfit {
    pub(crate) setting: &'static str,
    pub(crate) seen: &'static str,
    pub(crate) needed: &'static str,
}

/// An unfit stream is never changed.
pub(crate) fn unfit(stream: &Config, subjects: &str) -> Option<Unfit> {
    let renames = stream.subject_transform.as_ref().is_some_and(|transform| {
        // A subject transform without a source pattern applies to every subject.
        transform.source.is_empty() || overlap(&transform.source, subjects)
    });
    let settings = [
        (
            stream.no_ack,
            "no_ack",
            "true",
            "false, because publishers wait for the acknowledgement",
        ),
        (
            stream.sealed,
            "sealed",
            "true",
            "false, because a sealed stream accepts no messages",
        ),
        (
            stream.mirror.is_some(),
            "mirror",
            "another stream",
            "none, because a mirror accepts no messages",
        ),
        (
            renames,
            "subject_transform",
            "one of the published subjects",
            "none for these subjects, because consumers filter by the published subject and would receive nothing",
        ),
        (
            stream.persist_mode == Some(PersistenceMode::Async),
            "persist_mode",
            "async",
            "default, because the server acknowledges messages before it stores them",
        ),
        (
            stream.allow_message_counter,
            "allow_msg_counter",
            "true",
            "false, because a stream of counters rejects other messages",
        ),
    ];
    let wrong = settings.into_iter().find(|(wrong, ..)| *wrong);
    wrong.map(|(_, setting, seen, needed)| Unfit {
        setting,
        seen,
        needed,
    })
}

fn warnings(seen: &Seen<'_>, wanted: &EventStream) -> Vec<String> {
    let name = &wanted.name;
    let mut warnings = Vec::new();
    if !seen.version_is_known {
        warnings.push(format!(
            "nats-server has version {}; update it to 2.9 or newer",
            seen.version
        ));
    }
    warnings.extend(warnings_of(seen.stream, seen.clustered, wanted));
    let limit = message_bytes_max(seen.stream, seen.max_payload);
    if limit < MESSAGE_BYTES {
        warnings.push(format!(
            "server and stream `{name}` accept at most {limit} bytes with headers (max_payload, max_msg_size), but an outbox records up to {MESSAGE_BYTES}; raise both limits or lower the outbox's limit, or larger messages become dead letters"
        ));
    }
    warnings
}

pub(crate) fn warnings_of(stream: &Config, clustered: bool, wanted: &EventStream) -> Vec<String> {
    let name = &wanted.name;
    let mut warnings = Vec::new();
    let mut warn = |wrong: bool, text: String| {
        if wrong {
            warnings.push(text);
        }
    };
    warn(
        stream.retention != RetentionPolicy::Limits,
        format!(
            "stream `{name}` has retention {:?}, which deletes published ids with their messages, so the stream stores copies; retention must be Limits",
            stream.retention
        ),
    );
    let window = stream.duplicate_window;
    let outlast = "it must outlast the relay's lease, its restart and an outage of the broker, or a message published before them is stored again";
    warn(
        window < WINDOW_NEEDED,
        format!(
            "stream `{name}` has duplicate window {window:?}; set it to {WINDOW_NEEDED:?} or more, better {WINDOW_WANTED:?}: {outlast}"
        ),
    );
    warn(
        (WINDOW_NEEDED..WINDOW_WANTED).contains(&window),
        format!(
            "stream `{name}` has duplicate window {window:?}, recommended is {WINDOW_WANTED:?} or more: {outlast}"
        ),
    );
    warn(
        stream.storage != StorageType::File,
        format!("stream `{name}` is in memory, so a restart of the server loses messages; use file storage"),
    );
    let copies = if clustered {
        wanted.replicas.max(3)
    } else {
        wanted.replicas
    };
    warn(
        stream.num_replicas < copies,
        format!(
            "stream `{name}` has {}, so the loss of one server stops it or loses messages; set replicas to {copies}",
            replicas(stream.num_replicas)
        ),
    );
    let (age, wanted_age) = (stream.max_age, wanted.max_age);
    warn(
        !age.is_zero() && (wanted_age.is_zero() || age < wanted_age),
        format!(
            "stream `{name}` deletes messages after {age:?}, but {wanted_age:?} is configured; raise max_age"
        ),
    );
    let limited = stream.max_bytes > 0 || stream.max_messages > 0;
    warn(
        limited && stream.discard == DiscardPolicy::Old,
        format!(
            "stream `{name}` is limited to {} messages and {} bytes (-1 is no limit) with discard policy old, so it drops unread events silently when full; use discard policy new",
            stream.max_messages, stream.max_bytes
        ),
    );
    warn(
        stream.max_messages_per_subject > 0 && !stream.discard_new_per_subject,
        format!(
            "stream `{name}` keeps {} messages per subject, so slow consumers miss events; remove max_msgs_per_subject",
            stream.max_messages_per_subject
        ),
    );
    warn(
        stream.max_messages_per_subject > 0 && stream.discard_new_per_subject,
        format!(
            "stream `{name}` rejects messages of a subject that holds {} (max_msgs_per_subject, discard_new_per_subject), so they wait in the outbox; unset both",
            stream.max_messages_per_subject
        ),
    );
    warnings
}

pub(crate) fn message_bytes_max(stream: &Config, max_payload: usize) -> usize {
    let limit = usize::try_from(stream.max_message_size).ok();
    let limit = limit.filter(|limit| *limit > 0);
    limit.map_or(max_payload, |limit| limit.min(max_payload))
}

pub(crate) fn replicas(count: usize) -> String {
    format!("{count} replica{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::stream::SubjectTransform;

    use super::*;

    fn good() -> Config {
        Config {
            name: "EVENTS".to_owned(),
            subjects: vec!["events.>".to_owned()],
            duplicate_window: WINDOW_WANTED,
            discard: DiscardPolicy::New,
            num_replicas: 3,
            max_bytes: -1,
            max_messages: -1,
            max_message_size: -1,
            ..Config::default()
        }
    }

    fn with(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = good();
        change(&mut config);
        config
    }

    fn seen(stream: &Config) -> Seen<'_> {
        Seen {
            stream,
            clustered: true,
            max_payload: MESSAGE_BYTES,
            version: "2.10.0",
            version_is_known: true,
        }
    }

    fn warnings(stream: &Config) -> Vec<String> {
        judge(&seen(stream), &EventStream::default()).unwrap()
    }

    #[test]
    fn a_good_stream_gives_no_warning() {
        assert_eq!(warnings(&good()), Vec::<String>::new());
    }

    #[test]
    fn each_weak_setting_gives_one_warning_with_the_value_seen() {
        for (stream, value) in [
            (
                with(|config| config.retention = RetentionPolicy::WorkQueue),
                "WorkQueue",
            ),
            (
                with(|config| config.duplicate_window = Duration::from_secs(119)),
                "119s",
            ),
            (
                with(|config| config.duplicate_window = Duration::from_secs(121)),
                "121s",
            ),
            (with(|config| config.storage = StorageType::Memory), "memory"),
            (with(|config| config.num_replicas = 1), "1 replica"),
            (
                with(|config| config.max_age = Duration::from_secs(42)),
                "after 42s",
            ),
            (
                with(|config| {
                    config.discard = DiscardPolicy::Old;
                    config.max_bytes = 4_242;
                }),
                "4242 bytes",
            ),
            (
                with(|config| config.max_messages_per_subject = 7),
                "7 messages per subject",
            ),
            (
                with(|config| {
                    config.max_messages_per_subject = 1;
                    config.discard_new_per_subject = true;
                }),
                "a subject that holds 1 ",
            ),
            (with(|config| config.max_message_size = 2_000), "2000 bytes"),
        ] {
            let warnings = warnings(&stream);
            assert_eq!(warnings.len(), 1, "{value}: {warnings:?}");
            assert!(warnings[0].contains(value), "{warnings:?}");
        }
    }

    #[test]
    fn a_small_or_old_server_gives_a_warning() {
        let stream = good();
        let small = Seen {
            max_payload: 65_536,
            ..seen(&stream)
        };
        let old = Seen {
            version: "2.8.4",
            version_is_known: false,
            ..seen(&stream)
        };
        for (seen, value) in [(small, "65536"), (old, "2.8.4")] {
            let warnings = judge(&seen, &EventStream::default()).unwrap();
            assert_eq!(warnings.len(), 1);
            assert!(warnings[0].contains(value), "{warnings:?}");
        }
    }

    #[test]
    fn unusable_stream_is_refused() {
        let transform = |source: &str| Config {
            subject_transform: Some(SubjectTransform {
                source: source.to_owned(),
                destination: "elsewhere.>".to_owned(),
            }),
            ..good()
        };
        for (stream, setting) in [
            (
                with(|config| config.subjects = vec!["events.order.>".to_owned()]),
                "captures",
            ),
            (with(|config| config.no_ack = true), "no_ack"),
            (with(|config| config.sealed = true), "sealed"),
            (transform(""), "subject_transform"),
            (transform("events.order.>"), "subject_transform"),
            (
                with(|config| config.persist_mode = Some(PersistenceMode::Async)),
                "persist_mode",
            ),
            (
                with(|config| config.allow_message_counter = true),
                "allow_msg_counter",
            ),
        ] {
            let error = judge(&seen(&stream), &EventStream::default()).unwrap_err();
            assert_eq!(error.class(), FailureClass::Configuration);
            assert!(error.to_string().contains(setting), "{error}");
        }
        assert_eq!(warnings(&transform("other.>")), Vec::<String>::new());
    }
}
