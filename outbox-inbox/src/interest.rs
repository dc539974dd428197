//! The events that a consumer subscribes to.
//!
//! Invariant: depends only on the handlers and event types of the program, so all processes get the
//! same result.

use std::time::Duration;

use outbox_core::EventDescriptor;

use crate::handler::{Registration, Strategy};

#[derive(Debug, Default)]
pub(crate) struct Interest {
    /// As [`ConsumerSpec::events`](outbox_core::ConsumerSpec::events).
    pub(crate) events: Vec<&'static EventDescriptor>,
    /// As [`ConsumerSpec::whole_aggregates`](outbox_core::ConsumerSpec::whole_aggregates).
    pub(crate) whole_aggregates: bool,
    /// As [`ConsumerSpec::siblings`](outbox_core::ConsumerSpec::siblings).
    pub(crate) siblings: Vec<&'static EventDescriptor>,
}

impl Interest {
    /// `linked`: the event types of the program.
    pub(crate) fn of(consumer: &str, handlers: &[Registration], linked: &[&'static EventDescriptor]) -> Self {
        let mut interest = Self::default();
        for handler in handlers.iter().filter(|handler| handler.consumer == consumer) {
            // If the newest sequence wins, no other event of the aggregate is needed.
            let strategy = handler.options.strategy;
            interest.whole_aggregates |=
                matches!(strategy, Strategy::Sequence { gap } if gap != Some(Duration::ZERO));
            interest.events.extend(handler.events);
        }
        interest.add_selected(linked);
        interest.add_siblings(linked);
        interest
    }

    /// Adds event types on fixed subjects that a wildcard selects. `"*"` needs no names.
    fn add_selected(&mut self, linked: &[&'static EventDescriptor]) {
        let is_selection = |event: &&EventDescriptor| event.is_selection() && !event.is_everything();
        let selections: Vec<_> = self.events.iter().copied().filter(is_selection).collect();
        for event in linked.iter().copied().filter(|event| event.subject.is_some()) {
            let mut selections = selections.iter();
            let is_selected = selections.any(|selection| selection.selects(&event.event_type()));
            if is_selected && !self.events.contains(&event) {
                self.events.push(event);
            }
        }
    }

    /// Adds event types on fixed subjects that a consumer without a handler for them needs for
    /// gapless sequences.
    fn add_siblings(&mut self, linked: &[&'static EventDescriptor]) {
        if !self.whole_aggregates {
            return;
        }
        let own = &self.events;
        let counts = |event: &&'static EventDescriptor| {
            event.sequenced
                && event.subject.is_some()
                && !own.contains(event)
                && own.iter().any(|own| own.aggregate == event.aggregate)
        };
        self.siblings = linked.iter().copied().filter(counts).collect();
    }
}
