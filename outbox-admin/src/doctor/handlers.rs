//! The rule about handlers that are linked into the program: the broker is asked for their events, and for no others.
//!
//! Not here: which handlers there are, and which filters their inbox asks for. Who calls knows both.

use super::{Check, Diagnosis};
use crate::status::State;

/// A consumer whose handlers are linked into this program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkedConsumer {
    /// Its name.
    pub name: String,
    /// The filters that its inbox asks for: they select the events of its handlers.
    pub wanted: Vec<String>,
    /// Further filters that it may have without harm: they select events of its handlers as well, in another layout of the stream's subjects.
    pub harmless: Vec<String>,
}

/// What is wrong with what the broker is asked for: `asked` are the filters of the durable consumer, none if it asks for everything, or `None` if the stream holds
/// events that are wanted and has no consumer of that name.
#[must_use]
pub fn of_handlers(linked: &LinkedConsumer, asked: Option<&[String]>) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    let mut report = |seen: String, needed: &str, next: &str| {
        let about = (linked.name.as_str(), seen);
        found.push(Diagnosis::new(
            Check::Handlers,
            State::Degraded,
            about,
            needed,
            next,
        ));
    };
    let Some(asked) = asked else {
        report(
            "its handlers are linked into this program and the stream holds events for them, but the stream has no consumer of this name"
                .to_owned(),
            "a process that runs them: nobody handles their events",
            "start its service, whose inbox makes the consumer",
        );
        return found;
    };
    if asked.is_empty() {
        return found;
    }
    let wanted = linked.wanted.iter();
    let missing = wanted.filter(|wanted| !asked.iter().any(|asked| covers(asked, wanted)));
    if let Some(missing) = listed(missing) {
        report(
            format!("it does not ask for {missing}, which its handlers need"),
            "all that its handlers need: what it does not ask for is not delivered to it",
            "start its service in this version, whose inbox adds the filter",
        );
    }
    // Some of what a wide filter selects has a handler, and one filter for everything is all that servers before 2.10 can have.
    let has_handler = |asked: &str| {
        let mut handled = linked.wanted.iter().chain(&linked.harmless);
        handled.any(|handled| meets(asked, handled))
    };
    if let Some(others) = listed(asked.iter().filter(|asked| !has_handler(asked))) {
        report(
            format!("it asks for {others}, for which no handler is linked into this program"),
            "a handler for all that is delivered: what another version has asked for goes back to the broker until a process handles it, unless its service is \
             set otherwise (`UnknownEvent`)",
            "start the version of its service that handles it, or link the crate of an event type that only counts into this program; if nobody is to handle it any \
             more, deploy with UnknownEvent::Skip, and then take it off the consumer's list and filters with nats consumer edit, because inboxes never narrow filters \
             (operations.md, Versions)",
        );
    }
    found
}

/// The filters in a sentence; `None` if there are none.
fn listed<'a>(filters: impl Iterator<Item = &'a String>) -> Option<String> {
    let filters: Vec<String> = filters.map(|filter| format!("`{filter}`")).collect();
    (!filters.is_empty()).then(|| filters.join(", "))
}

/// Whether all subjects that match `narrow` match `wide` too, as `outbox-nats` has it, on which nothing here depends.
fn covers(wide: &str, narrow: &str) -> bool {
    let (mut wide, mut narrow) = (wide.split('.'), narrow.split('.'));
    loop {
        match (wide.next(), narrow.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(wide), Some(narrow)) if wide == narrow => {}
            _ => return false,
        }
    }
}

/// Whether some subject matches both.
fn meets(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some(one), Some(other)) if one == other || one == "*" || other == "*" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACED: &str = "events.order.*.placed";
    const SHIPPED: &str = "events.order.*.shipped";

    fn owned(filters: &[&str]) -> Vec<String> {
        filters.iter().map(|filter| (*filter).to_owned()).collect()
    }

    /// What is found where a consumer asks for some filters, and the handlers want others.
    fn seen(asked: &[&str], wanted: &[&str]) -> Vec<String> {
        let linked = LinkedConsumer {
            name: "inventory".to_owned(),
            wanted: owned(wanted),
            harmless: owned(&["events.order.*"]),
        };
        let found = of_handlers(&linked, Some(&owned(asked)));
        for finding in &found {
            assert_eq!(
                (finding.check, finding.state, finding.subject.as_str()),
                (Check::Handlers, State::Degraded, "inventory")
            );
        }
        found.into_iter().map(|finding| finding.seen).collect()
    }

    #[test]
    fn handlers_without_a_consumer_on_the_stream_are_a_finding() {
        let linked = LinkedConsumer {
            name: "inventory".to_owned(),
            wanted: owned(&[PLACED]),
            harmless: Vec::new(),
        };
        let found = of_handlers(&linked, None);
        assert!(
            found.len() == 1 && found[0].seen.ends_with("no consumer of this name"),
            "{found:?}"
        );
    }

    #[test]
    fn a_consumer_that_asks_for_what_its_handlers_take_is_no_finding() {
        assert_eq!(seen(&[PLACED], &[PLACED]), [""; 0]);
        assert_eq!(seen(&[SHIPPED, PLACED], &[PLACED, SHIPPED]), [""; 0]);
    }

    #[test]
    fn a_filter_may_be_wider_than_what_handlers_take() {
        for wide in ["events.order.*.*", "events.*.*.placed", "events.>", ">"] {
            assert_eq!(seen(&[wide], &[PLACED]), [""; 0], "{wide}");
        }
        assert_eq!(seen(&[], &[PLACED, SHIPPED]), [""; 0], "it asks for everything");
    }

    #[test]
    fn events_that_a_consumer_does_not_ask_for_are_a_finding() {
        let found = seen(&[PLACED], &[PLACED, SHIPPED]);
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("it does not ask for `{SHIPPED}`, ")),
            "{found:?}"
        );
        assert_eq!(seen(&[PLACED], &["events.order.*.*"]).len(), 1);
        assert_eq!(seen(&["events.order.>"], &[">"]).len(), 1);
    }

    #[test]
    fn events_without_a_handler_are_a_finding() {
        let found = seen(&[PLACED, "events.cart.*.added", SHIPPED], &[PLACED]);
        assert_eq!(found.len(), 1, "{found:?}");
        let begins = format!("it asks for `events.cart.*.added`, `{SHIPPED}`, ");
        assert!(found[0].starts_with(&begins), "{found:?}");
        // The handlers of another version only.
        assert_eq!(seen(&[SHIPPED], &[PLACED]).len(), 2);
    }

    #[test]
    fn a_filter_of_another_layout_of_subjects_is_no_finding_and_is_not_enough() {
        assert_eq!(seen(&[PLACED, "events.order.*"], &[PLACED]), [""; 0]);
        assert_eq!(seen(&["events.order.*"], &[PLACED]).len(), 1);
    }

    #[test]
    fn handlers_of_everything_leave_no_event_without_one() {
        assert_eq!(seen(&[], &[">"]), [""; 0]);
        assert_eq!(seen(&[PLACED, ">"], &[">"]), [""; 0]);
    }

    #[test]
    fn patterns_meet_where_a_subject_matches_both() {
        for (one, other) in [
            ("a.*.c", "a.b.*"),
            ("a.>", "a.b"),
            ("*.b", "a.>"),
            (">", "a"),
            ("a.b", "a.b"),
        ] {
            assert!(meets(one, other) && meets(other, one), "{one} {other}");
        }
        for (one, other) in [("a.b", "a.c"), ("a.*", "a.b.c"), ("a.>", "a"), ("a.*.c", "b.>")] {
            assert!(!meets(one, other) && !meets(other, one), "{one} {other}");
        }
    }
}
