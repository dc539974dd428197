//! The events that a consumer subscribes to, the same in all processes of a program.

use std::time::Duration;

use outbox_core::EventDescriptor;

use crate::handler::{Registration, Strategy};

#[derive(Debug, Default)]
pub(crate) struct Interest {
    pub(crate) events: Vec<&'static EventDescriptor>,
    pub(crate) whole_aggregates: bool,
    pub(crate) siblings: Vec<&'static EventDescriptor>,
}

impl Interest {
    pub(crate) fn of(consumer: &str, handlers: &[Registration], linked: &[&'static EventDescriptor]) -> Self {
        let mut interest = Self::default();
        for handler in handlers.iter().filter(|handler| handler.consumer == consumer) {
            let strategy = handler.options.strategy;
            interest.whole_aggregates |=
                matches!(strategy, Strategy::Sequence { gap } if gap != Some(Duration::ZERO));
            interest.events.extend(handler.events);
        }
        interest.add_selected(linked);
        interest.add_siblings(linked);
        interest
    }

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
