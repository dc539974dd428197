//! The rule about handlers that are linked into the program: the broker is asked for their events, and for no others.
//!
//! Not here: which handlers there are, and how the filters of a broker compare. Who calls knows both.

use super::{Check, Diagnosis};
use crate::next::Next;
use crate::verdict::State;

/// How a consumer on the stream fits the handlers that are linked into this program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandlerFacts {
    /// The name of the consumer.
    pub consumer: String,
    /// The stream holds events for the handlers, and has no consumer of that name. The rest is empty then.
    pub has_no_consumer: bool,
    /// The filters that the handlers need, and that the consumer does not ask for.
    pub missing: Vec<String>,
    /// The filters that the consumer asks for, and that none of the handlers needs.
    pub superfluous: Vec<String>,
}

/// Finds a consumer that is missing on the stream, events that it does not ask for, and filters that no handler needs.
#[must_use]
pub fn of_handlers(facts: &HandlerFacts) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    let mut report = |is_wrong: bool, seen: String, needed: &str, advice: &str| {
        if is_wrong {
            let about = (facts.consumer.as_str(), seen);
            found.push(Diagnosis::new(
                Check::Handlers,
                State::Degraded,
                about,
                needed,
                Next::advice(advice),
            ));
        }
    };
    report(
        facts.has_no_consumer,
        "its handlers are linked into this program and the stream holds events for them, but the stream has no consumer of this name"
            .to_owned(),
        "a process that runs them: nobody handles their events",
        "start its service, whose inbox makes the consumer",
    );
    report(
        !facts.missing.is_empty(),
        format!(
            "it does not ask for {}, which its handlers need",
            listed(&facts.missing)
        ),
        "all that its handlers need: what it does not ask for is not delivered to it",
        "start its service in this version, whose inbox adds the filter",
    );
    report(
        !facts.superfluous.is_empty(),
        format!(
            "it asks for {}, for which no handler is linked into this program",
            listed(&facts.superfluous)
        ),
        "a handler for all that is delivered: what another version has asked for goes back to the broker until a process handles it, unless its service is \
         set otherwise (`UnknownEvent`)",
        "start the version of its service that handles it, or link the crate of an event type that only counts into this program; if nobody is to handle it any \
         more, deploy with UnknownEvent::Skip, and then take it off the consumer's list and filters with nats consumer edit, because inboxes never narrow filters \
         (operations.md, Versions)",
    );
    found
}

/// The filters in a sentence.
fn listed(filters: &[String]) -> String {
    let filters: Vec<String> = filters.iter().map(|filter| format!("`{filter}`")).collect();
    filters.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> HandlerFacts {
        HandlerFacts {
            consumer: "inventory".to_owned(),
            ..HandlerFacts::default()
        }
    }

    fn seen(facts: &HandlerFacts) -> Vec<String> {
        let found = of_handlers(facts);
        for finding in &found {
            assert_eq!(
                (finding.check, finding.state, finding.subject.as_str()),
                (Check::Handlers, State::Degraded, "inventory")
            );
        }
        found.into_iter().map(|finding| finding.seen).collect()
    }

    #[test]
    fn a_consumer_that_fits_its_handlers_is_no_finding() {
        assert_eq!(seen(&facts()), [""; 0]);
    }

    #[test]
    fn handlers_without_a_consumer_on_the_stream_are_a_finding() {
        let found = seen(&HandlerFacts {
            has_no_consumer: true,
            ..facts()
        });
        assert!(
            found.len() == 1 && found[0].ends_with("no consumer of this name"),
            "{found:?}"
        );
    }

    #[test]
    fn each_filter_that_is_missing_or_superfluous_is_named() {
        let found = seen(&HandlerFacts {
            missing: vec!["a".to_owned(), "b".to_owned()],
            superfluous: vec!["c".to_owned()],
            ..facts()
        });
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("it does not ask for `a`, `b`, "),
            "{found:?}"
        );
        assert!(found[1].starts_with("it asks for `c`, "), "{found:?}");
    }
}
