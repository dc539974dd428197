//! Finds out up to which stream sequence the deliveries of a consumer that was just made tell everything about the wanted aggregates.
//!
//! Invariants: it ends before the first message of the wanted aggregate types that the consumer does not ask for, and with the last message that is there now,
//! because what is published later is not looked for. Only a consumer that this process has made counts: another one may have passed messages that nobody asked
//! for at that time, and the server does not tell. One question for a subscription stands for one per aggregate. Not here: the deliveries
//! ([`outbox_core::Unbroken`]).

use std::collections::BTreeSet;

use async_nats::jetstream::consumer::{self, DeliverPolicy};
use outbox_core::{Catalogue, SubscriberError};
use tokio::time::timeout;

use crate::consumer::Durable;
use crate::filters::filters_of;
use crate::predecessors::{ANSWER_MAX, first_on};
use crate::subject::captures;

/// The last stream sequence for which a subscription can know everything; 0 if it cannot. `info`: the consumer that this process has made.
///
/// At most one request for each aggregate type and each fixed subject, all in a second.
pub(crate) async fn known_until(durable: &Durable, info: &consumer::Info) -> u64 {
    // Where a time is on the stream would be a question of its own, and behind a number there is nothing yet.
    if !durable.spec.whole_aggregates || info.config.deliver_policy != DeliverPolicy::All {
        return 0;
    }
    if !is_with_us(durable) {
        return 0;
    }
    let looked = timeout(ANSWER_MAX, look(durable, &info.config)).await;
    // Not an error: then aggregates that begin late are asked for one by one.
    looked.ok().and_then(Result::ok).unwrap_or(0)
}

/// Whether our connection ends when the server that keeps the consumer does. A server that takes over may have missed the last deliveries, and number others
/// like them.
fn is_with_us(durable: &Durable) -> bool {
    match &durable.stream.cached_info().cluster {
        None => true,
        Some(cluster) => {
            let is_alone = cluster.replicas.is_empty();
            is_alone && cluster.leader.as_ref() == Some(&durable.server)
        }
    }
}

async fn look(durable: &Durable, config: &consumer::Config) -> Result<u64, SubscriberError> {
    // Read before the consumer was made, so that the questions find everything up to there.
    let mut known_until = durable.stream.cached_info().state.last_sequence;
    for pattern in unasked(durable, config) {
        if let Some(first) = first_on(&durable.stream, &pattern, 1).await? {
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
