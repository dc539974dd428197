//! Finds handlers of undecoded messages that would never run, or have an unsuitable strategy.

use super::wrong_option;
use crate::handler::{Registration, Strategy};
use crate::start_error::Problem;

pub(super) fn problems(handlers: &[Registration]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, handler) in handlers.iter().enumerate() {
        for event in handler.events.iter().filter(|event| event.is_selection()) {
            let event_type = event.event_type();
            let earlier = handlers[..index]
                .iter()
                .filter(|other| other.events.contains(event));
            let typed = handlers.iter().filter(|other| {
                let mut events = other.events.iter();
                events.any(|other| !other.is_selection() && other.event_type() == event_type)
            });
            let mut others = earlier.chain(typed);
            if let Some(other) = others.find(|other| other.consumer == handler.consumer) {
                problems.push(wrong_option(
                    handler,
                    "`messages`",
                    &format!(
                        "selects `{event_type}`, which {other} of the same consumer handles; remove it from \
                         one handler, or use another `consumer`"
                    ),
                ));
            }
            if event.is_everything() && matches!(handler.options.strategy, Strategy::Sequence { .. }) {
                problems.push(wrong_option(
                    handler,
                    "`strategy = sequence`",
                    "cannot work with `messages = [\"*\"]`: not every message on a stream has a number; name the aggregate types, or use another strategy",
                ));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use outbox_core::EventDescriptor;

    use super::*;
    use crate::handler::HandlerOptions;
    use crate::tests::HANDLER;

    const PLACED: &[EventDescriptor] = &[EventDescriptor {
        version: 1,
        ..EventDescriptor::of_type("order", "placed")
    }];
    const RAW_PLACED: &[EventDescriptor] = &[EventDescriptor::of_type("order", "placed")];
    const RAW_ORDERS: &[EventDescriptor] = &[EventDescriptor::of_aggregate("order")];
    const EVERYTHING: &[EventDescriptor] = &[EventDescriptor::EVERYTHING];

    fn handler(
        consumer: &'static str,
        name: &'static str,
        events: &'static [EventDescriptor],
    ) -> Registration {
        Registration {
            consumer,
            handler: name,
            events,
            ..HANDLER
        }
    }

    fn counting(handler: Registration) -> Registration {
        Registration {
            options: HandlerOptions::new().strategy(Strategy::Sequence { gap: None }),
            ..handler
        }
    }

    fn texts(handlers: &[Registration]) -> Vec<String> {
        crate::preflight::options(handlers)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn narrow_and_wide_selections_can_coexist() {
        let handlers = [
            handler("audit", "placed", PLACED),
            handler("audit", "orders", RAW_ORDERS),
            handler("audit", "rest", EVERYTHING),
            handler("other", "rest", EVERYTHING),
        ];
        assert_eq!(texts(&handlers), [""; 0]);
    }

    #[test]
    fn duplicate_selection_in_a_consumer_is_refused() {
        for (events, name) in [(RAW_ORDERS, "order.*"), (EVERYTHING, "*.*")] {
            let found = texts(&[handler("audit", "one", events), handler("audit", "two", events)]);
            let [text] = found.as_slice() else {
                panic!("{found:?}")
            };
            let expected = format!(
                "`messages` of handler `two` (book.rs:7) selects `{name}`, which `one` (book.rs:7) of the same"
            );
            assert!(text.starts_with(&expected), "{text}");
        }
        let found = texts(&[
            handler("audit", "raw", RAW_PLACED),
            handler("audit", "typed", PLACED),
        ]);
        assert!(
            found[0].contains("of handler `raw`") && found[0].contains("which `typed`"),
            "{found:?}"
        );
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn wildcard_with_sequence_is_refused() {
        let found = texts(&[counting(handler("audit", "rest", EVERYTHING))]);
        assert!(found[0].contains("name the aggregate types"), "{found:?}");
        let found = texts(&[
            counting(handler("audit", "placed", PLACED)),
            handler("audit", "rest", EVERYTHING),
        ]);
        assert!(found[0].contains("mix strategies"), "{found:?}");
        assert_eq!(
            texts(&[counting(handler("audit", "orders", RAW_ORDERS))]),
            [""; 0]
        );
    }
}
