//! Compares an existing stream with its description, without a server.

use async_nats::jetstream::stream::{Config, RetentionPolicy};
use outbox_core::EventDescriptor;

use super::error::ProvisionError;
use crate::stream::preflight::unfit;
use crate::stream::subject::{captures, without_covered};
use crate::stream::{EventStream, Provisioning};

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) subjects: Vec<String>,
    pub(super) subjects_added: Vec<String>,
    pub(super) raise_duplicate_window: bool,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.subjects_added.is_empty() && !self.raise_duplicate_window
    }
}

/// A difference that cannot or must not be changed is an error.
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
    // The server bounds the duplicate window by the maximum age, and raising the age costs disk.
    let age_forbids = !seen.max_age.is_zero() && seen.max_age < stream.duplicate_window;
    if raise_duplicate_window && (stream.provisioning == Provisioning::VerifyOnly || age_forbids) {
        let (name, needed) = (&stream.name, stream.duplicate_window);
        return Err(ProvisionError::misfit(format!(
            "stream `{name}` has a duplicate window of {:?}, {needed:?} is needed; raise it with: nats stream edit {name} --dupe-window={}s (and `max_age` if that is shorter)",
            seen.duplicate_window,
            needed.as_secs()
        )));
    }
    if stream.provisioning == Provisioning::VerifyOnly {
        check_captured(stream, &seen.subjects, events)?;
        if let (true, [subject, ..]) = (events.is_empty(), subjects_added.as_slice()) {
            let what = "a subject of the description";
            return Err(ProvisionError::uncaptured(
                &stream.name,
                what,
                subject,
                &seen.subjects,
            ));
        }
        return Ok(Plan::default());
    }
    check_captured(stream, wanted, events)?;
    // A wider subject replaces the subjects it covers, because the server rejects overlaps.
    let subjects = without_covered(seen.subjects.iter().chain(&subjects_added).cloned());
    Ok(Plan {
        subjects,
        subjects_added,
        raise_duplicate_window,
    })
}

fn check_fixed(stream: &EventStream, seen: &Config) -> Result<(), ProvisionError> {
    let refused = |setting: &str, seen: &str, needed: &str| {
        Err(ProvisionError::setting(&stream.name, setting, seen, needed))
    };
    if seen.retention != RetentionPolicy::Limits {
        let needed = "Limits, because other policies delete published ids; it cannot be changed, so create another stream";
        return refused("retention", &format!("{:?}", seen.retention), needed);
    }
    match unfit(seen, &stream.prefix.wildcard()) {
        Some(unfit) => refused(unfit.setting, unfit.seen, unfit.needed),
        None => Ok(()),
    }
}

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
            let what = format!("event `{}`", event.event_type());
            return Err(ProvisionError::uncaptured(
                &stream.name,
                &what,
                &subject,
                subjects,
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    fn created_stream_needs_no_change() {
        for stream in [EventStream::default(), verify_only()] {
            assert!(run(&stream, &existing(&stream), &[&PLACED]).unwrap().is_empty());
        }
    }

    #[test]
    fn fixed_subjects_are_added_or_required() {
        let stream = EventStream::default();
        let plan = run(&stream, &existing(&stream), &[&PLACED, &LEGACY]).unwrap();
        assert_eq!(plan.subjects, ["events.>", "legacy.shipped"]);
        assert_eq!(plan.subjects_added, ["legacy.shipped"]);

        let refused = run(&verify_only(), &existing(&stream), &[&PLACED, &LEGACY]).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("event `order.shipped`") && text.contains("`legacy.shipped`"),
            "{text}"
        );
    }

    #[test]
    fn wider_subject_replaces_covered_subjects() {
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
    fn verification_passes_if_every_event_is_captured() {
        let seen = Config {
            subjects: vec!["events.order.>".into()],
            ..existing(&EventStream::default())
        };
        assert!(run(&verify_only(), &seen, &[&PLACED]).unwrap().is_empty());
        assert!(run(&verify_only(), &seen, &[]).is_err());
    }

    #[test]
    fn configured_subjects_must_capture_the_events() {
        let stream = EventStream::default().with_subject("shop.>");
        assert!(run(&stream, &existing(&stream), &[&PLACED]).is_err());
    }

    #[test]
    fn strong_mode_requires_captured_aggregate_subjects() {
        let seen = Config {
            subjects: vec!["events.order.*.*".into()],
            ..existing(&EventStream::default())
        };
        run(&verify_only(), &seen, &[&PLACED]).unwrap();
        let refused = run(&verify_only().with_strong_mode(), &seen, &[&PLACED]).unwrap_err();
        assert!(refused.to_string().contains("`events.order.*`"), "{refused}");
    }

    #[test]
    fn retention_that_deletes_ids_is_refused() {
        let stream = EventStream::default();
        for retention in [RetentionPolicy::WorkQueue, RetentionPolicy::Interest] {
            let seen = Config {
                retention,
                ..existing(&stream)
            };
            let refused = run(&stream, &seen, &[]).unwrap_err();
            assert!(refused.to_string().contains("`retention`"), "{refused}");
        }
    }

    #[test]
    fn streams_that_store_or_confirm_nothing_are_refused() {
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
            assert!(run(&stream, &seen, &[]).is_err());
        }
    }

    #[test]
    fn duplicate_window_is_never_lowered() {
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
        assert!(refused.to_string().contains("--dupe-window=600s"), "{refused}");
        let young = Config {
            max_age: minutes(5),
            ..window(minutes(2))
        };
        assert!(run(&stream, &young, &[]).is_err());
    }
}
