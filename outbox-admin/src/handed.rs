//! Which consumers are handed messages once they are published, and where these have no further effect.
//!
//! Invariants: nothing is published or received; what could not be looked at is said to be unknown. Not here: which consumers there are, and what their filters take.
//! Who calls asks the broker.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use outbox_core::{EventId, Message, MessageId, OutboxReader, StoreError};
use serde::Serialize;

use crate::timeline::{EffectOutcome, EffectRow};
use crate::words::count;

/// The durable consumers of a stream, each with the events that it is handed once they are published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Handed(BTreeMap<String, HashSet<EventId>>);

impl Handed {
    /// These consumers, none of which is handed anything yet.
    #[must_use]
    pub fn new(consumers: impl IntoIterator<Item = String>) -> Self {
        let consumers = consumers.into_iter();
        Self(consumers.map(|consumer| (consumer, HashSet::new())).collect())
    }

    /// Notes that these consumers are handed an event.
    pub fn note(&mut self, event: EventId, takers: impl IntoIterator<Item = String>) {
        for taker in takers {
            self.0.entry(taker).or_default().insert(event);
        }
    }

    /// The consumers that are handed something: those whose inboxes are worth a look.
    #[must_use]
    pub fn takers(&self) -> Vec<String> {
        let takers = self.0.iter().filter(|(_, events)| !events.is_empty());
        takers.map(|(consumer, _)| consumer.clone()).collect()
    }
}

/// Asks of each message which of the consumers are handed it. Reads each by its id. `takers` names the consumers whose filters take a message.
///
/// # Errors
///
/// [`StoreError`].
pub async fn handed(
    store: &impl OutboxReader,
    messages: &[MessageId],
    consumers: impl IntoIterator<Item = String>,
    takers: impl Fn(&Message) -> Vec<String>,
) -> Result<Handed, StoreError> {
    let mut handed = Handed::new(consumers);
    for id in messages {
        // One that is gone, or whose row cannot be read, is not published.
        let found = store.find(*id).await?;
        if let Some(message) = found.and_then(|found| found.message.ok()) {
            handed.note(message.event_id, takers(&message));
        }
    }
    Ok(handed)
}

/// What a consumer would make of events that are published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForeseenConsumer {
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
pub struct Foresight {
    /// Each durable consumer of the stream.
    pub consumers: Vec<ForeseenConsumer>,
    /// The same in sentences.
    pub effects: Vec<String>,
}

impl Foresight {
    /// Nothing is known of any consumer, for this reason.
    #[must_use]
    pub fn unknown(why: String) -> Self {
        Self {
            consumers: Vec::new(),
            effects: vec![why],
        }
    }
}

/// Says what consumers would make of a sample of events. `rows` are those of [`effects`](fn@crate::effects) of the [takers](Handed::takers); `None` if an inbox
/// could not be looked at: what it does not say is no reason to believe that it has forgotten.
#[must_use]
pub fn foresee(events: &[EventId], handed: &Handed, rows: Option<&[EffectRow]>) -> Foresight {
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
    let mut foresight = Foresight::default();
    let mut others = Vec::new();
    for (consumer, events) in &handed.0 {
        let remembered = match (events.is_empty(), rows) {
            (false, Some(rows)) => Some(remembered_by(consumer, rows)),
            _ => None,
        };
        foresight.consumers.push(ForeseenConsumer {
            consumer: consumer.clone(),
            sampled: count(sampled.len()),
            handed: count(events.len()),
            remembered: remembered.as_ref().map(|remembered| count(remembered.len())),
        });
        match events.is_empty() {
            true => others.push(consumer.as_str()),
            false => foresight
                .effects
                .push(sentence(consumer, sampled.len(), events, remembered.as_ref())),
        }
    }
    foresight.effects.extend(about_others(&sampled, handed, &others));
    foresight
}

/// The sentence that says why it is not known what consumers would make of events.
#[must_use]
pub fn unforeseen(unseen: impl fmt::Display) -> String {
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
        assert_eq!(handed().takers(), ["audit", "billing"]);
        let said = foresee(&events, &handed(), Some(&rows));
        let counts: Vec<_> = said
            .consumers
            .iter()
            .map(|foreseen| (foreseen.sampled, foreseen.handed, foreseen.remembered))
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
        let said = foresee(&[event(1), event(2)], &handed(), None);
        assert!(
            said.consumers
                .iter()
                .all(|consumer| consumer.remembered.is_none())
        );
        assert_eq!(
            said.effects[1],
            "consumer billing is handed 2 of the first 2 events: which of them it remembers is not known"
        );
        let none = foresee(&[event(1)], &Handed::default(), Some(&[]));
        assert_eq!(
            none.effects,
            ["no durable consumer of the stream takes the event"]
        );
        assert_eq!(foresee(&[], &Handed::default(), None), Foresight::default());
    }

    #[test]
    fn what_nobody_remembers_takes_effect() {
        let mut handed = Handed::new(["billing".to_owned()]);
        handed.note(event(1), ["billing".to_owned()]);
        assert_eq!(
            foresee(&[event(1)], &handed, Some(&[])).effects,
            [
                "consumer billing is handed 1 and remembers 0 of 1 event: what it is handed takes effect there if it has a handler for it, and no strategy that remembers without a row for each event (`sequence`, `constraint`, `external`)"
            ]
        );
    }
}
