//! The events that handlers have recorded because of others: the last link of a timeline.
//!
//! Invariant: bounded. A follow-up is recorded in the transaction of its consumer's effect, so only messages of about that time are read, and no more than so
//! many. Their payloads are not kept.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::{EventId, FoundPublished, OutboxReader, PublishedSearch, StoreError, StoredMessage};
use time::OffsetDateTime;

use crate::timeline::{EffectOutcome, FollowUp, Timeline};

/// How far the time of an effect and that of its follow-ups may be apart: the longest transaction of a handler that is looked for.
const AROUND: Duration = Duration::from_secs(10);

/// Most spans of time that are looked through.
const SPANS_MAX: usize = 20;

/// Most published messages that are read for each of them.
const READ_MAX: NonZeroU32 = NonZeroU32::new(5_000).unwrap();

/// Most messages of any status that are looked at for that.
const LOOKED_AT_MAX: NonZeroU32 = NonZeroU32::new(50_000).unwrap();

/// How far the clock of a handler, which makes the ids, and that of its database may differ.
const CLOCKS_APART: Duration = Duration::from_secs(5);

fn follow_up(message: StoredMessage) -> FollowUp {
    FollowUp {
        id: message.id,
        aggregate_type: message.aggregate.aggregate_type,
        aggregate_id: message.aggregate.id,
        sequence: message.sequence,
        event_type: message.event_type,
        recorded_at: message.created_at,
    }
}

/// Adds the follow-ups of the events to a timeline into which the effects were [joined](Timeline::join). They are known by their causation id, and found if they
/// are published, still kept by the outbox, and were recorded within 10 seconds of an effect. At most 20 spans of time are looked through, of each at most 5,000
/// published messages and 50,000 of any status; what was not looked through is noted in [`Timeline::unseen`].
///
/// # Errors
///
/// [`StoreError`].
pub(crate) async fn follow_ups(store: &impl OutboxReader, timeline: &mut Timeline) -> Result<(), StoreError> {
    let mut spans = spans(timeline);
    if spans.len() > SPANS_MAX {
        spans.truncate(SPANS_MAX);
        timeline
            .unseen
            .push("follow-ups of the later events: a shorter timeline looks for them".to_owned());
    }
    let mut is_cut = false;
    for (from, until) in spans {
        let search = PublishedSearch {
            aggregate: None,
            from: from.checked_sub(CLOCKS_APART.try_into().unwrap_or_default()),
            until: until.checked_add(CLOCKS_APART.try_into().unwrap_or_default()),
            looked_at_max: LOOKED_AT_MAX,
            limit: READ_MAX,
        };
        let found = store.search_published(&search).await?;
        is_cut |= found.looked_from.is_some() || found.messages.len() == READ_MAX.get() as usize;
        let around = |stored: &StoredMessage| (from..until).contains(&stored.created_at);
        for FoundPublished { stored, causation_id } in found.messages {
            if let (Some(cause), true) = (causation_id, around(&stored)) {
                add(timeline, &cause, stored);
            }
        }
    }
    if is_cut {
        timeline.unseen.push(format!(
            "some follow-ups: {READ_MAX} published messages or more, or more than {LOOKED_AT_MAX} of any status, were recorded around an effect"
        ));
    }
    Ok(())
}

fn add(timeline: &mut Timeline, cause: &str, message: StoredMessage) {
    let is_cause = |event: EventId| event.to_string() == cause;
    if let Some(event) = timeline.events.iter_mut().find(|event| is_cause(event.event_id))
        && event.follow_ups.iter().all(|known| known.id != message.id)
    {
        event.follow_ups.push(follow_up(message));
    }
}

/// The times around the effects, those that overlap put together.
fn spans(timeline: &Timeline) -> Vec<(OffsetDateTime, OffsetDateTime)> {
    let effects = timeline.events.iter().flat_map(|event| &event.effects);
    let handled = effects.filter(|effect| effect.outcome == EffectOutcome::Handled);
    let mut times: Vec<OffsetDateTime> = handled.filter_map(|effect| effect.at).collect();
    times.sort_unstable();
    let mut spans: Vec<(OffsetDateTime, OffsetDateTime)> = Vec::new();
    for time in times {
        // A time at the end of the calendar only comes from a damaged row.
        let (Some(from), Some(until)) = (
            time.checked_sub(AROUND.try_into().unwrap_or_default()),
            time.checked_add(AROUND.try_into().unwrap_or_default()),
        ) else {
            continue;
        };
        match spans.last_mut() {
            Some(last) if from <= last.1 => last.1 = until,
            _ => spans.push((from, until)),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use outbox_core::{
        Aggregate, FetchRequest, Fitness, MessageContext, MessageId, OutboxStore, OwnerId, Selection,
        Settlement, Verdict,
    };
    use outbox_testing::MemoryStore;
    use outbox_testing::conformance::probe::Probe;

    use super::*;
    use crate::timeline::{Effect, EffectRow};

    const LIMIT: NonZeroU32 = NonZeroU32::new(100).unwrap();

    /// Records an event because of another one, and returns it.
    fn recorded(store: &MemoryStore, id: &str, cause: Option<EventId>) -> (MessageId, EventId) {
        let context = MessageContext {
            causation_id: cause.map(|cause| cause.to_string()),
            ..MessageContext::default()
        };
        let event = [Probe::noted(id, 1)];
        context
            .sync_scope(|| store.record(event))
            .expect("it is recorded");
        let message = store.rows().last().expect("a row").message.clone();
        (message.id, message.event_id)
    }

    async fn publish_all(store: &MemoryStore) {
        let owner = OwnerId::fresh();
        let ttl = Duration::from_secs(60);
        store
            .announce(owner, ttl, &Fitness::Fit.into())
            .await
            .expect("announced");
        let leases = store.acquire(owner, ttl, 64).await.expect("acquired");
        let request = FetchRequest {
            leases: &leases,
            limit: LIMIT,
            bytes: usize::MAX,
            in_flight: &[],
        };
        let fetched = store.fetch(request).await.expect("fetched");
        let settle = |row: outbox_core::FetchedRow| row.with_verdict(Verdict::Published { keep: true });
        let settlements: Vec<Settlement> = fetched.due.into_iter().map(settle).collect();
        store.settle(&leases, &settlements).await.expect("settled");
    }

    async fn read(store: &MemoryStore, cause: EventId, at: OffsetDateTime) -> Timeline {
        let aggregate = Aggregate::new("probe", "a");
        let timeline = Timeline::of(store, &aggregate, Selection::all(), LIMIT).await;
        let mut timeline = timeline.expect("a timeline");
        let effect = Effect {
            consumer: "billing".to_owned(),
            outcome: EffectOutcome::Handled,
            attempts: 0,
            at: Some(at),
            error: None,
        };
        timeline.join(
            &[EffectRow {
                event_id: cause,
                effect,
            }],
            &[],
        );
        follow_ups(store, &mut timeline).await.expect("follow-ups");
        timeline
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_recorded_because_of_an_event_follows_it() {
        let store = MemoryStore::new();
        let (_, cause) = recorded(&store, "a", None);
        let (follow_up, _) = recorded(&store, "b", Some(cause));
        recorded(&store, "c", None);
        publish_all(&store).await;
        let timeline = read(&store, cause, store.now()).await;
        let found: Vec<MessageId> = timeline.events[0]
            .follow_ups
            .iter()
            .map(|found| found.id)
            .collect();
        assert_eq!((found, timeline.unseen.len()), (vec![follow_up], 0));
        // Where no effect was, nobody looks.
        let elsewhere = read(&store, cause, store.now() + Duration::from_secs(3600)).await;
        assert!(elsewhere.events[0].follow_ups.is_empty());
    }
}
