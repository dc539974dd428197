//! What consumers would make of messages that are published again: which of them are handed them, and where these have no further effect.
//!
//! Invariants: nothing is published or received; what could not be looked at is said to be unknown.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use outbox_core::{EventId, Message};
use serde::Serialize;

use crate::stream_view::{StreamView, answered};
use crate::timeline::{EffectOutcome, EffectRow};
use crate::words::count;

/// The durable consumers of a stream, each with the events that it is handed once they are published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Handed(BTreeMap<String, HashSet<EventId>>);

impl Handed {
    /// These consumers, none of which is handed anything yet.
    fn new(consumers: impl IntoIterator<Item = String>) -> Self {
        let consumers = consumers.into_iter();
        Self(consumers.map(|consumer| (consumer, HashSet::new())).collect())
    }

    /// Notes that these consumers are handed an event.
    fn note(&mut self, event: EventId, takers: impl IntoIterator<Item = String>) {
        for taker in takers {
            self.0.entry(taker).or_default().insert(event);
        }
    }
}

/// What a consumer would make of events that are published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ConsumerEffect {
    /// The consumer.
    pub consumer: String,
    /// Events of the sample.
    pub sampled: u64,
    /// Those that it is handed, because its filters take them.
    pub handed: u64,
    /// Those that its inbox remembers as handled or dead, so that they have no further effect; `None` if the consumer is handed none, or its inbox could not be looked at.
    /// Only rows of events count: the strategies `sequence`, `constraint` and `external` remember otherwise, and one with a key of its own under other ids.
    pub remembered: Option<u64>,
}

/// What the consumers of a stream would make of events that are published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerEffects {
    /// Each durable consumer of the stream.
    pub consumers: Vec<ConsumerEffect>,
    /// The same in sentences.
    pub effects: Vec<String>,
}

impl ConsumerEffects {
    /// Asks which consumers are handed these messages, and what the inboxes of those remember of these events. Each answer is waited for within `patience`; what is
    /// missing is said to be unknown.
    pub async fn of(
        stream: &dyn StreamView,
        events: &[EventId],
        messages: &[Message],
        patience: Duration,
    ) -> Self {
        let takers = match answered(patience, stream.takers()).await {
            Ok(takers) => takers,
            Err(unseen) => return Self::unknown(unseen),
        };
        let mut handed = Handed::new(takers.consumers);
        for message in messages {
            handed.note(message.event_id, (takers.of)(message));
        }
        // Inboxes of consumers that are handed nothing do not matter.
        if handed.0.values().all(HashSet::is_empty) {
            return judge(events, &handed, Some(&[]));
        }
        let (rows, unseen) = match answered(patience, stream.inboxes(events)).await {
            Ok(view) => (view.rows, view.unseen),
            Err(error) => (Vec::new(), vec![format!("inboxes: {error}")]),
        };
        let mut effects = judge(events, &handed, unseen.is_empty().then_some(rows.as_slice()));
        effects.effects.extend(unseen.iter().map(unknown));
        effects
    }

    /// Nothing is known of any consumer, for this reason.
    pub(crate) fn unknown(why: impl fmt::Display) -> Self {
        Self {
            consumers: Vec::new(),
            effects: vec![unknown(why)],
        }
    }
}

/// `rows` are those of the inboxes; `None` if one could not be looked at: what it does not say is no reason to believe that it has forgotten.
fn judge(events: &[EventId], handed: &Handed, rows: Option<&[EffectRow]>) -> ConsumerEffects {
    let sampled: HashSet<EventId> = events.iter().copied().collect();
    let remembered_by = |consumer: &str, rows: &[EffectRow]| -> HashSet<EventId> {
        let is_over = |row: &&EffectRow| {
            row.effect.consumer == *consumer
                && matches!(
                    row.effect.outcome,
                    EffectOutcome::Handled | EffectOutcome::DeadLetter
                )
        };
        let over = rows.iter().filter(is_over).map(|row| row.event_id);
        over.filter(|event| sampled.contains(event)).collect()
    };
    let mut found = ConsumerEffects::default();
    let mut others = Vec::new();
    for (consumer, events) in &handed.0 {
        let remembered = match (events.is_empty(), rows) {
            (false, Some(rows)) => Some(remembered_by(consumer, rows)),
            _ => None,
        };
        found.consumers.push(ConsumerEffect {
            consumer: consumer.clone(),
            sampled: count(sampled.len()),
            handed: count(events.len()),
            remembered: remembered.as_ref().map(|remembered| count(remembered.len())),
        });
        match events.is_empty() {
            true => others.push(consumer.as_str()),
            false => found
                .effects
                .push(sentence(consumer, sampled.len(), events, remembered.as_ref())),
        }
    }
    found.effects.extend(about_others(&sampled, handed, &others));
    found
}

/// The sentence that says why it is not known what consumers would make of events.
fn unknown(unseen: impl fmt::Display) -> String {
    format!("which consumers would take effect is not known: {unseen}")
}

/// What the rows of an inbox do not tell.
const PROVIDED: &str = "if it has a handler for it, and no strategy that remembers without a row for each event (`sequence`, `constraint`, `external`)";

/// What becomes of the events at a consumer that is handed some of them.
fn sentence(
    consumer: &str,
    sampled: usize,
    handed: &HashSet<EventId>,
    remembered: Option<&HashSet<EventId>>,
) -> String {
    let (all, count) = (in_words(sampled), handed.len());
    let Some(remembered) = remembered else {
        return format!(
            "consumer {consumer} is handed {count} of {all}: which of them it remembers is not known"
        );
    };
    let (knows_none, knows_all) = (handed.is_disjoint(remembered), handed.is_subset(remembered));
    let what = match (knows_none, knows_all) {
        (true, _) => format!("what it is handed takes effect there {PROVIDED}"),
        (_, true) => "what it is handed has no further effect there".to_owned(),
        _ => format!("what it remembers has no further effect there, the rest takes effect {PROVIDED}"),
    };
    format!(
        "consumer {consumer} is handed {count} and remembers {} of {all}: {what}",
        remembered.len()
    )
}

/// The consumers that are handed nothing, in one sentence however many there are.
fn about_others(sampled: &HashSet<EventId>, handed: &Handed, others: &[&str]) -> Option<String> {
    let all = match sampled.len() {
        0 => return None,
        1 => "the event".to_owned(),
        count => format!("any of {}", in_words(count)),
    };
    if others.len() == handed.0.len() {
        return Some(format!("no durable consumer of the stream takes {all}"));
    }
    let names = others.join(", ");
    (!others.is_empty()).then(|| format!("these consumers do not take {all}: {names}"))
}

fn in_words(events: usize) -> String {
    match events {
        1 => "1 event".to_owned(),
        count => format!("the first {count} events"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Effect;
    use uuid::Uuid;

    fn event(number: u128) -> EventId {
        EventId::from(Uuid::from_u128(number))
    }

    fn row(consumer: &str, number: u128, outcome: EffectOutcome) -> EffectRow {
        EffectRow {
            event_id: event(number),
            effect: Effect {
                consumer: consumer.to_owned(),
                outcome,
                attempts: 0,
                at: None,
                error: None,
            },
        }
    }

    /// `billing` takes both events, `audit` the first one, and `search` none.
    fn handed() -> Handed {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut handed = Handed::new(names(&["audit", "billing", "search"]));
        handed.note(event(1), names(&["audit", "billing"]));
        handed.note(event(2), names(&["billing"]));
        handed
    }

    #[test]
    fn what_a_consumer_remembers_has_no_further_effect_there() {
        let rows = [
            row("billing", 1, EffectOutcome::DeadLetter),
            row("billing", 2, EffectOutcome::Failed),
            row("billing", 3, EffectOutcome::Handled),
            row("audit", 1, EffectOutcome::Handled),
        ];
        let events = [event(1), event(2)];
        let said = judge(&events, &handed(), Some(&rows));
        let counts: Vec<_> = said
            .consumers
            .iter()
            .map(|effect| (effect.sampled, effect.handed, effect.remembered))
            .collect();
        assert_eq!(counts, [(2, 1, Some(1)), (2, 2, Some(1)), (2, 0, None)]);
        assert_eq!(
            said.effects,
            [
                "consumer audit is handed 1 and remembers 1 of the first 2 events: what it is handed has no further effect there",
                "consumer billing is handed 2 and remembers 1 of the first 2 events: what it remembers has no further effect there, the rest takes effect if it has a handler for it, and no strategy that remembers without a row for each event (`sequence`, `constraint`, `external`)",
                "these consumers do not take any of the first 2 events: search",
            ]
        );
    }

    #[test]
    fn what_an_inbox_does_not_say_is_unknown() {
        let said = judge(&[event(1), event(2)], &handed(), None);
        assert!(
            said.consumers
                .iter()
                .all(|consumer| consumer.remembered.is_none())
        );
        assert_eq!(
            said.effects[1],
            "consumer billing is handed 2 of the first 2 events: which of them it remembers is not known"
        );
        let none = judge(&[event(1)], &Handed::default(), Some(&[]));
        assert_eq!(
            none.effects,
            ["no durable consumer of the stream takes the event"]
        );
        assert_eq!(judge(&[], &Handed::default(), None), ConsumerEffects::default());
    }

    #[test]
    fn what_nobody_remembers_takes_effect() {
        let mut handed = Handed::new(["billing".to_owned()]);
        handed.note(event(1), ["billing".to_owned()]);
        assert_eq!(
            judge(&[event(1)], &handed, Some(&[])).effects,
            [
                "consumer billing is handed 1 and remembers 0 of 1 event: what it is handed takes effect there if it has a handler for it, and no strategy that remembers without a row for each event (`sequence`, `constraint`, `external`)"
            ]
        );
    }
}
