//! What the doctor finds about handlers that are linked into the program. The program `outbox` has none; one that mounts the commands may have some.
//!
//! Invariant: the filters that are wanted are computed by the inbox and the subscriber themselves, so they cannot differ from those that a service asks for.

use futures_util::TryStreamExt as _;
use outbox::core::describe;
use outbox::inbox::Router;
use outbox::nats::async_nats::jetstream::consumer;
use outbox::nats::async_nats::jetstream::stream::Stream;
use outbox::nats::{EventStream, covers, overlap};
use outbox_admin::doctor::{Diagnosis, HandlerFacts, of_handlers};

use crate::commands::place::Place;

/// The filters of a consumer whose handlers are linked into this program.
struct Linked {
    /// Those that its inbox asks for: they select the events of its handlers.
    wanted: Vec<String>,
    /// Further ones that it may have without harm: they select events of its handlers as well, in another layout of the stream's subjects.
    harmless: Vec<String>,
}

/// Compares the handlers of this program with the durable consumers of a stream. An error is a text for people.
pub(super) async fn findings(
    place: &Place,
    handle: &Stream,
    stream: &EventStream,
    durables: &[consumer::Info],
) -> Result<Vec<Diagnosis>, String> {
    // From which of several places a consumer reads, and so which filters it needs, only its service knows.
    if place.file.several_places {
        return Ok(Vec::new());
    }
    let router = Router::registered();
    let mut found = Vec::new();
    for name in router.consumers() {
        let handlers = Linked::of(&router, name, stream);
        let mut facts = match durables.iter().find(|info| info.name == name) {
            Some(durable) => handlers.compare(&filters(&durable.config)),
            // An inbox may read another stream than that of the outbox beside it: it is missed only where there is something for it.
            None => HandlerFacts {
                has_no_consumer: holds_any(handle, &handlers.wanted).await?,
                ..HandlerFacts::default()
            },
        };
        facts.consumer = name.to_owned();
        found.extend(of_handlers(&facts));
    }
    Ok(found)
}

/// Whether this program has handlers to compare.
pub(super) fn are_linked(place: &Place) -> bool {
    !place.file.several_places && !Router::registered().consumers().is_empty()
}

/// Whether the stream holds a message that one of the filters selects.
async fn holds_any(handle: &Stream, filters: &[String]) -> Result<bool, String> {
    for filter in filters {
        let mut subjects = handle
            .info_with_subjects(filter)
            .await
            .map_err(|error| describe(&error))?;
        let first = subjects.try_next().await.map_err(|error| describe(&error))?;
        if first.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Linked {
    /// What the inbox of a consumer asks for.
    fn of(router: &Router, name: &str, stream: &EventStream) -> Self {
        let interest = router.interest(name);
        let needed = |stream: &EventStream| {
            let events = interest.events.iter().chain(&interest.siblings).copied();
            stream.consumer_filters(events, interest.whole_aggregates)
        };
        Self {
            wanted: needed(stream),
            // Inboxes never narrow filters, so they outlast strong mode. So may messages.
            harmless: needed(&stream.clone().with_strong_mode()),
        }
    }

    /// Compares them with what the durable consumer asks for. Without a filter it asks for everything.
    fn compare(&self, asked: &[String]) -> HandlerFacts {
        let is_asked = |wanted: &String| asked.is_empty() || asked.iter().any(|asked| covers(asked, wanted));
        // Some of what a wide filter selects has a handler, and one filter for everything is all that servers before 2.10 can have.
        let has_handler = |asked: &String| {
            let mut handled = self.wanted.iter().chain(&self.harmless);
            handled.any(|handled| overlap(asked, handled))
        };
        HandlerFacts {
            missing: self
                .wanted
                .iter()
                .filter(|wanted| !is_asked(wanted))
                .cloned()
                .collect(),
            superfluous: asked
                .iter()
                .filter(|asked| !has_handler(asked))
                .cloned()
                .collect(),
            ..HandlerFacts::default()
        }
    }
}

/// The filters of a durable consumer; none if it asks for everything.
fn filters(config: &consumer::Config) -> Vec<String> {
    if config.filter_subjects.is_empty() && !config.filter_subject.is_empty() {
        return vec![config.filter_subject.clone()];
    }
    config.filter_subjects.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACED: &str = "events.order.*.placed";
    const SHIPPED: &str = "events.order.*.shipped";

    /// Compares the filters of a consumer with those that the handlers want. Returns the missing ones and the superfluous ones.
    fn compared(asked: &[&str], wanted: &[&str]) -> (Vec<String>, Vec<String>) {
        let owned = |filters: &[&str]| filters.iter().map(|filter| (*filter).to_owned()).collect();
        let linked = Linked {
            wanted: owned(wanted),
            harmless: owned(&["events.order.*"]),
        };
        let asked: Vec<String> = owned(asked);
        let facts = linked.compare(&asked);
        (facts.missing, facts.superfluous)
    }

    fn filters(filters: &[&str]) -> Vec<String> {
        filters.iter().map(|filter| (*filter).to_owned()).collect()
    }

    fn fits() -> (Vec<String>, Vec<String>) {
        (Vec::new(), Vec::new())
    }

    #[test]
    fn a_consumer_that_asks_for_what_its_handlers_take_is_no_finding() {
        assert_eq!(compared(&[PLACED], &[PLACED]), fits());
        assert_eq!(compared(&[SHIPPED, PLACED], &[PLACED, SHIPPED]), fits());
    }

    #[test]
    fn a_filter_may_be_wider_than_what_handlers_take() {
        for wide in ["events.order.*.*", "events.*.*.placed", "events.>", ">"] {
            assert_eq!(compared(&[wide], &[PLACED]), fits(), "{wide}");
        }
        assert_eq!(
            compared(&[], &[PLACED, SHIPPED]),
            fits(),
            "it asks for everything"
        );
    }

    #[test]
    fn events_that_a_consumer_does_not_ask_for_are_a_finding() {
        assert_eq!(compared(&[PLACED], &[PLACED, SHIPPED]).0, filters(&[SHIPPED]));
        assert_eq!(
            compared(&[PLACED], &["events.order.*.*"]).0,
            filters(&["events.order.*.*"])
        );
        assert_eq!(compared(&["events.order.>"], &[">"]).0, filters(&[">"]));
    }

    #[test]
    fn events_without_a_handler_are_a_finding() {
        let added = "events.cart.*.added";
        assert_eq!(
            compared(&[PLACED, added, SHIPPED], &[PLACED]),
            (Vec::new(), filters(&[added, SHIPPED]))
        );
        // The handlers of another version only.
        assert_eq!(
            compared(&[SHIPPED], &[PLACED]),
            (filters(&[PLACED]), filters(&[SHIPPED]))
        );
    }

    #[test]
    fn a_filter_of_another_layout_of_subjects_is_no_finding_and_is_not_enough() {
        assert_eq!(compared(&[PLACED, "events.order.*"], &[PLACED]), fits());
        assert_eq!(compared(&["events.order.*"], &[PLACED]).0, filters(&[PLACED]));
    }

    #[test]
    fn handlers_of_everything_leave_no_event_without_one() {
        assert_eq!(compared(&[], &[">"]), fits());
        assert_eq!(compared(&[PLACED, ">"], &[">"]), fits());
    }
}
