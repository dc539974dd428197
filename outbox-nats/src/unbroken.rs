//! Finds out up to which stream sequence the deliveries of a new consumer tell everything about the wanted aggregates.
//!
//! Invariants: that is above zero only if the consumer has passed no message by when this process has subscribed, and it ends before the first message of the
//! wanted aggregate types that the consumer does not ask for. What is published later is not looked for, so it ends with the last message of that moment. One
//! question for each subscription stands for one per aggregate. Not here: the deliveries ([`outbox_core::Unbroken`]).

use std::collections::BTreeSet;

use async_nats::jetstream::consumer::{self, DeliverPolicy};
use outbox_core::{Catalogue, SubscriberError};
use tokio::time::timeout;

use crate::consumer::Durable;
use crate::filters::filters_of;
use crate::predecessors::{ANSWER_MAX, first_on};
use crate::subject::captures;

/// The last stream sequence for which a subscription can know everything; 0 if it cannot. `info`: the consumer as it was after all changes of this process.
///
/// At most one request for each aggregate type and each fixed subject, all in a second, and none for a consumer that was given something.
pub(crate) async fn known_until(durable: &Durable, info: &consumer::Info) -> u64 {
    let known = timeout(ANSWER_MAX, look(durable, info)).await;
    // Not an error: then aggregates that begin late are asked for one by one.
    known.ok().and_then(Result::ok).unwrap_or(0)
}

async fn look(durable: &Durable, info: &consumer::Info) -> Result<u64, SubscriberError> {
    let state = &durable.stream.cached_info().state;
    let start = match info.config.deliver_policy {
        DeliverPolicy::All => state.first_sequence,
        DeliverPolicy::ByStartSequence { start_sequence } => start_sequence.max(state.first_sequence),
        // Where that is would be a question of its own.
        _ => return Ok(0),
    };
    // A consumer also passes messages that nobody has asked for, until its filter is widened.
    let is_new = info.delivered.consumer_sequence == 0 && info.delivered.stream_sequence < start.max(1);
    if !is_new || !durable.spec.whole_aggregates {
        return Ok(0);
    }
    let mut known_until = state.last_sequence;
    for pattern in unasked(durable, &info.config) {
        if !durable.many_filters {
            // Old servers look through the whole stream.
            return Ok(0);
        }
        if let Some(first) = first_on(&durable.stream, &pattern, start.max(1)).await? {
            known_until = known_until.min(first.sequence - 1);
        }
    }
    Ok(known_until)
}

/// The subjects of the wanted aggregate types as far as the consumer's filters leave them out: the default ones in both modes, and the fixed ones that this
/// program knows.
fn unasked(durable: &Durable, config: &consumer::Config) -> BTreeSet<String> {
    let filters = filters_of(&config.filter_subject, &config.filter_subjects);
    let wanted = || durable.spec.events.iter().filter(|event| !event.is_everything());
    let linked = Catalogue::linked().unwrap_or_default();
    let fixed = linked.iter().filter(|event| {
        let is_wanted = wanted().any(|wanted| wanted.aggregate == event.aggregate);
        is_wanted && event.sequenced && event.subject.is_some()
    });
    let fixed = fixed.map(|event| durable.prefix.filter(event));
    wanted()
        .flat_map(|event| durable.prefix.patterns_of_aggregates(event))
        .chain(fixed)
        .filter(|pattern| !captures(&filters, pattern))
        .collect()
}
