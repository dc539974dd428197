//! Compares an existing stream with its description. It is a pure function, so each rule has a test without a server.

use std::fmt;
use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use outbox_core::EventDescriptor;

use super::error::ProvisionError;
use crate::stream::preflight::{Unfit, unfit};
use crate::stream::subject::{captures, without_covered};
use crate::stream::{EventStream, Provisioning};

/// The changes that an existing stream needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// All subjects the stream should have.
    pub(super) subjects: Vec<String>,
    pub(super) subjects_added: Vec<String>,
    pub(super) raise_duplicate_window: bool,
    pub(super) warnings: Vec<StreamWarning>,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.subjects_added.is_empty() && !self.raise_duplicate_window
    }
}

/// A setting of an existing stream that works and may lose messages. It is not changed, because it may be a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamWarning {
    /// The stream drops its oldest messages when it is full, read or not.
    DiscardsUnread,
    /// The stream keeps only so many messages per subject, so a slow consumer misses events of an aggregate.
    KeepsPerSubject {
        /// Messages kept per subject.
        messages: i64,
    },
    /// The stream is in memory: a restart of the server loses messages and the ids of published ones.
    InMemory,
    /// Messages are deleted earlier than asked for.
    ShortAge {
        /// The stream's setting.
        seen: Duration,
        /// The age that was asked for, [`EventStream::with_max_age`].
        wanted: Duration,
    },
    /// The stream has fewer copies than asked for, so the loss of a server may stop it or lose messages.
    FewReplicas {
        /// The stream's setting.
        seen: usize,
        /// The copies that were asked for, [`EventStream::with_replicas`].
        wanted: usize,
    },
}

impl fmt::Display for StreamWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DiscardsUnread => f.write_str(
                "the stream drops its oldest messages when full, read or not; use discard policy `new`",
            ),
            Self::KeepsPerSubject { messages } => write!(
                f,
                "the stream keeps {messages} messages per subject, so slow consumers miss events; remove `max_msgs_per_subject`"
            ),
            Self::InMemory => f.write_str(
                "the stream is in memory, so a restart of the server loses messages; use file storage",
            ),
            Self::ShortAge { seen, wanted } => {
                write!(
                    f,
                    "the stream deletes messages after {seen:?}, {wanted:?} was asked for; raise `max_age`"
                )
            }
            Self::FewReplicas { seen, wanted } => {
                write!(
                    f,
                    "the stream is kept by {seen} servers, {wanted} were asked for; raise `num_replicas`"
                )
            }
        }
    }
}

/// Compares. A difference that cannot or must not be changed is an error.
pub(super) fn compare(
    stream: &EventStream,
    seen: &Config,
    wanted: &[String],
    events: &[&EventDescriptor],
) -> Result<Plan, ProvisionError> {
    check_fixed(stream, seen)?;
    let subjects_added: Vec<String> = wanted
        .iter()
        .filter(|subject| !captures(&seen.subjects, subject))
        .cloned()
        .collect();
    let raise_duplicate_window = seen.duplicate_window < stream.duplicate_window;
    // The server bounds the window by the age, and raising the age is not ours to decide: it costs disk.
    let age_forbids = !seen.max_age.is_zero() && seen.max_age < stream.duplicate_window;
    if raise_duplicate_window && (stream.provisioning == Provisioning::VerifyOnly || age_forbids) {
        return Err(ProvisionError::DuplicateWindow {
            stream: stream.name.clone(),
            seen: seen.duplicate_window,
            needed: stream.duplicate_window,
        });
    }
    let warnings = warnings(stream, seen);
    if stream.provisioning == Provisioning::VerifyOnly {
        // The subjects of the description are a wish. Only a place for each event is needed.
        check_captured(stream, &seen.subjects, events)?;
        if let (true, [subject, ..]) = (events.is_empty(), subjects_added.as_slice()) {
            let subject = subject.clone();
            return Err(ProvisionError::Uncaptured {
                stream: stream.name.clone(),
                what: "the description".to_owned(),
                subject,
                seen: seen.subjects.clone(),
            });
        }
        return Ok(Plan {
            warnings,
            ..Plan::default()
        });
    }
    check_captured(stream, wanted, events)?;
    // A wider subject replaces the narrower ones it covers, because the server refuses overlaps within a stream.
    let subjects = without_covered(seen.subjects.iter().chain(&subjects_added).cloned());
    Ok(Plan {
        subjects,
        subjects_added,
        raise_duplicate_window,
        warnings,
    })
}

/// Refuses settings that make a stream useless for an outbox. None of them can or should be changed here.
fn check_fixed(stream: &EventStream, seen: &Config) -> Result<(), ProvisionError> {
    ProvisionError::check_retention(&stream.name, seen)?;
    if let Some(Unfit {
        setting,
        seen,
        needed,
    }) = unfit(seen, &stream.prefix.wildcard())
    {
        return Err(ProvisionError::Setting {
            stream: stream.name.clone(),
            setting,
            seen: seen.to_owned(),
            needed,
        });
    }
    Ok(())
}

/// Checks that each event has a subject among `subjects`.
pub(super) fn check_captured(
    stream: &EventStream,
    subjects: &[String],
    events: &[&EventDescriptor],
) -> Result<(), ProvisionError> {
    for event in events {
        let uncaptured = stream
            .filters(event, false)
            .find(|filter| !captures(subjects, filter));
        if let Some(subject) = uncaptured {
            return Err(ProvisionError::Uncaptured {
                stream: stream.name.clone(),
                what: format!("event `{}`", event.event_type()),
                subject,
                seen: subjects.to_vec(),
            });
        }
    }
    Ok(())
}

fn warnings(stream: &EventStream, seen: &Config) -> Vec<StreamWarning> {
    let bounded = seen.max_bytes > 0 || seen.max_messages > 0;
    let shorter = !seen.max_age.is_zero() && (stream.max_age.is_zero() || seen.max_age < stream.max_age);
    [
        (seen.discard == DiscardPolicy::Old && bounded).then_some(StreamWarning::DiscardsUnread),
        (seen.max_messages_per_subject > 0).then_some(StreamWarning::KeepsPerSubject {
            messages: seen.max_messages_per_subject,
        }),
        (seen.storage == StorageType::Memory).then_some(StreamWarning::InMemory),
        shorter.then_some(StreamWarning::ShortAge {
            seen: seen.max_age,
            wanted: stream.max_age,
        }),
        (seen.num_replicas < stream.replicas).then_some(StreamWarning::FewReplicas {
            seen: seen.num_replicas,
            wanted: stream.replicas,
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::stream::RetentionPolicy;

    use super::*;

    const fn event(name: &'static str, subject: Option<&'static str>) -> EventDescriptor {
        EventDescriptor {
            aggregate: "order",
            name,
            version: 1,
            subject,
            sequenced: true,
            rust_type: "Test",
            file: file!(),
            line: line!(),
        }
    }

    static PLACED: EventDescriptor = event("placed", None);
    static LEGACY: EventDescriptor = event("shipped", Some("legacy.shipped"));

    fn existing(stream: &EventStream) -> Config {
        stream.to_config(stream.wanted_subjects(&[]))
    }

    fn run(stream: &EventStream, seen: &Config, events: &[&EventDescriptor]) -> Result<Plan, ProvisionError> {
        compare(stream, seen, &stream.wanted_subjects(events), events)
    }

    fn verify_only() -> EventStream {
        EventStream::default().with_provisioning(Provisioning::VerifyOnly)
    }

    #[test]
    fn what_we_create_needs_no_change() {
        for stream in [EventStream::default(), verify_only()] {
            assert_eq!(run(&stream, &existing(&stream), &[&PLACED]).unwrap().warnings, []);
            assert!(run(&stream, &existing(&stream), &[&PLACED]).unwrap().is_empty());
        }
    }

    #[test]
    fn fixed_subjects_are_added_when_allowed_and_demanded_when_not() {
        let stream = EventStream::default();
        let plan = run(&stream, &existing(&stream), &[&PLACED, &LEGACY]).unwrap();
        assert_eq!(plan.subjects, ["events.>", "legacy.shipped"]);
        assert_eq!(plan.subjects_added, ["legacy.shipped"]);

        let refused = run(&verify_only(), &existing(&stream), &[&PLACED, &LEGACY]).unwrap_err();
        assert!(
            matches!(&refused, ProvisionError::Uncaptured { what, subject, .. }
            if what == "event `order.shipped`" && subject == "legacy.shipped")
        );
    }

    #[test]
    fn a_wider_subject_replaces_what_it_covers() {
        let stream = EventStream::default();
        let seen = Config {
            subjects: vec!["events.order.>".into(), "other.x".into()],
            ..existing(&stream)
        };
        assert_eq!(
            run(&stream, &seen, &[&PLACED]).unwrap().subjects,
            ["events.>", "other.x"]
        );
    }

    #[test]
    fn verification_is_content_when_every_event_has_a_place() {
        let seen = Config {
            subjects: vec!["events.order.>".into()],
            ..existing(&EventStream::default())
        };
        assert!(run(&verify_only(), &seen, &[&PLACED]).unwrap().is_empty());
        assert!(matches!(
            run(&verify_only(), &seen, &[]),
            Err(ProvisionError::Uncaptured { .. })
        ));
    }

    #[test]
    fn own_subjects_must_capture_the_events() {
        let stream = EventStream::default().with_subject("shop.>");
        assert!(matches!(
            run(&stream, &existing(&stream), &[&PLACED]),
            Err(ProvisionError::Uncaptured { .. })
        ));
    }

    #[test]
    fn in_strong_mode_the_subjects_of_aggregates_must_be_captured_too() {
        let seen = Config {
            subjects: vec!["events.order.*.*".into()],
            ..existing(&EventStream::default())
        };
        run(&verify_only(), &seen, &[&PLACED]).unwrap();
        let refused = run(&verify_only().with_strong_mode(), &seen, &[&PLACED]).unwrap_err();
        assert!(
            matches!(&refused, ProvisionError::Uncaptured { subject, .. } if subject == "events.order.*"),
            "{refused}"
        );
    }

    #[test]
    fn retention_that_forgets_ids_is_refused() {
        let stream = EventStream::default();
        for retention in [RetentionPolicy::WorkQueue, RetentionPolicy::Interest] {
            let seen = Config {
                retention,
                ..existing(&stream)
            };
            assert!(matches!(
                run(&stream, &seen, &[]),
                Err(ProvisionError::Setting {
                    setting: "retention",
                    ..
                })
            ));
        }
    }

    #[test]
    fn streams_that_take_or_confirm_nothing_are_refused() {
        let stream = EventStream::default();
        for seen in [
            Config {
                no_ack: true,
                ..existing(&stream)
            },
            Config {
                sealed: true,
                ..existing(&stream)
            },
        ] {
            assert!(matches!(
                run(&stream, &seen, &[]),
                Err(ProvisionError::Setting { .. })
            ));
        }
    }

    #[test]
    fn a_short_duplicate_window_is_raised_or_refused_but_never_lowered() {
        let minutes = Duration::from_mins;
        let stream = EventStream::default();
        let window = |window| Config {
            duplicate_window: window,
            ..existing(&stream)
        };
        assert!(
            run(&stream, &window(minutes(2)), &[])
                .unwrap()
                .raise_duplicate_window
        );
        assert!(
            !run(&stream, &window(minutes(60)), &[])
                .unwrap()
                .raise_duplicate_window
        );
        let refused = run(&verify_only(), &window(minutes(2)), &[]).unwrap_err();
        assert!(
            matches!(refused, ProvisionError::DuplicateWindow { seen, needed, .. }
            if seen == minutes(2) && needed == minutes(10))
        );
        let young = Config {
            max_age: minutes(5),
            ..window(minutes(2))
        };
        assert!(matches!(
            run(&stream, &young, &[]),
            Err(ProvisionError::DuplicateWindow { .. })
        ));
    }

    #[test]
    fn surprising_settings_are_warned_about() {
        let stream = EventStream::default();
        let seen = Config {
            discard: DiscardPolicy::Old,
            max_bytes: 1,
            max_messages_per_subject: 1,
            storage: StorageType::Memory,
            max_age: Duration::from_hours(1),
            ..existing(&stream)
        };
        let stream = stream.with_replicas(3);
        assert_eq!(run(&stream, &seen, &[]).unwrap().warnings.len(), 5);
    }
}
