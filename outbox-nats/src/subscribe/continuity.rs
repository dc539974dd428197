//! Finds out up to which stream sequence the deliveries of a consumer that was just made tell everything about the wanted aggregates.
//!
//! Invariants: it ends before the first message of the wanted aggregate types that the consumer does not ask for, and with the last message that is there now,
//! because what is published later is not looked for. Only a consumer that this process has made counts: another one may have passed messages that nobody asked
//! for at that time, and the server does not tell. One question for a subscription stands for one per aggregate. Not here: the deliveries
//! ([`outbox_core::Unbroken`]).

use std::collections::BTreeSet;

use async_nats::jetstream::consumer::{self, DeliverPolicy};
use async_nats::jetstream::stream::ClusterInfo;
use outbox_core::{Catalogue, EventDescriptor, SubscriberError};
use tokio::time::timeout;

use crate::stream::subject::{SubjectPrefix, captures};
use crate::subscribe::consumer::Durable;
use crate::subscribe::filters::filters_of;
use crate::subscribe::predecessors::{ANSWER_MAX, first_on};

/// The last stream sequence for which a subscription can know everything; 0 if it cannot. `info`: the consumer that this process has made.
///
/// At most one request for each aggregate type and each fixed subject, all in a second.
pub(crate) async fn known_until(durable: &Durable, info: &consumer::Info) -> u64 {
    // Where a time is on the stream would be a question of its own, and behind a number there is nothing yet.
    if !durable.spec.whole_aggregates || info.config.deliver_policy != DeliverPolicy::All {
        return 0;
    }
    if !is_with_us(durable.stream.cached_info().cluster.as_ref(), &durable.server) {
        return 0;
    }
    let looked = timeout(ANSWER_MAX, look(durable, &info.config)).await;
    // Not an error: then aggregates that begin late are asked for one by one.
    looked.ok().and_then(Result::ok).unwrap_or(0)
}

/// Whether our connection ends when the server that keeps the consumer does. A server that takes over may have missed the last deliveries, and number others
/// like them. `cluster`: of the stream. `ours`: the server that we are connected to.
fn is_with_us(cluster: Option<&ClusterInfo>, ours: &str) -> bool {
    cluster.is_none_or(|cluster| cluster.replicas.is_empty() && cluster.leader.as_deref() == Some(ours))
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

/// The subjects of the wanted aggregate types as far as the consumer's filters leave them out.
fn unasked(durable: &Durable, config: &consumer::Config) -> BTreeSet<String> {
    let filters = filters_of(&config.filter_subject, &config.filter_subjects);
    let linked = Catalogue::linked().unwrap_or_default();
    left_out(
        &durable.prefix,
        &durable.spec.events,
        &linked.iter().collect::<Vec<_>>(),
        &filters,
    )
}

/// The subjects of the wanted aggregate types that no filter captures: the default ones in both modes, and the fixed ones of `linked`, which are the events that
/// this program knows. Messages without numbers are no part of what a consumer counts.
fn left_out(
    prefix: &SubjectPrefix,
    wanted: &[&EventDescriptor],
    linked: &[&EventDescriptor],
    filters: &[String],
) -> BTreeSet<String> {
    let wanted = || wanted.iter().filter(|event| !event.is_everything());
    let fixed = linked.iter().filter(|event| {
        let is_wanted = wanted().any(|wanted| wanted.aggregate == event.aggregate);
        is_wanted && event.sequenced && event.subject.is_some()
    });
    let fixed = fixed.map(|event| prefix.filter(event));
    wanted()
        .flat_map(|event| prefix.patterns_of_aggregates(event))
        .chain(fixed)
        .filter(|pattern| !captures(filters, pattern))
        .collect()
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::stream::PeerInfo;

    use super::*;

    fn cluster(leader: Option<&str>, replicas: &[&str]) -> ClusterInfo {
        let replica = |name: &&str| PeerInfo {
            name: (*name).to_owned(),
            ..PeerInfo::default()
        };
        ClusterInfo {
            leader: leader.map(str::to_owned),
            replicas: replicas.iter().map(replica).collect(),
            ..ClusterInfo::default()
        }
    }

    #[test]
    fn a_server_that_keeps_the_consumer_alone_ends_with_our_connection() {
        assert!(is_with_us(None, "a"));
        assert!(is_with_us(Some(&cluster(Some("a"), &[])), "a"));
    }

    /// It may fail while we are connected to another one, and come back without its last deliveries.
    #[test]
    fn a_server_that_we_are_not_connected_to_may_come_back_unnoticed() {
        assert!(!is_with_us(Some(&cluster(Some("b"), &[])), "a"));
        assert!(!is_with_us(Some(&cluster(None, &[])), "a"));
    }

    /// It may hand the lead over while we stay connected to it.
    #[test]
    fn a_server_with_replicas_may_be_succeeded_unnoticed() {
        assert!(!is_with_us(Some(&cluster(Some("a"), &["b", "c"])), "a"));
    }

    const fn event(
        aggregate: &'static str,
        name: &'static str,
        subject: Option<&'static str>,
    ) -> EventDescriptor {
        EventDescriptor {
            aggregate,
            name,
            version: 1,
            subject,
            sequenced: true,
            rust_type: "Test",
            file: file!(),
            line: line!(),
        }
    }

    static PLACED: EventDescriptor = event("order", "placed", None);
    static REFUNDED: EventDescriptor = event("order", "refunded", Some("refunds"));
    static SEEN: EventDescriptor = EventDescriptor {
        sequenced: false,
        ..event("order", "seen", Some("sightings"))
    };
    static PAID: EventDescriptor = event("invoice", "paid", Some("payments"));

    /// The subjects that a consumer of these events and filters is not given, in a program that links all of the events above.
    fn left_out_of(wanted: &[&EventDescriptor], filters: &[&str]) -> Vec<String> {
        let filters: Vec<String> = filters.iter().map(|filter| (*filter).to_owned()).collect();
        let linked = [&PLACED, &REFUNDED, &SEEN, &PAID];
        let prefix = SubjectPrefix::new("events").unwrap();
        left_out(&prefix, wanted, &linked, &filters).into_iter().collect()
    }

    #[test]
    fn a_fixed_subject_of_the_aggregate_that_is_not_asked_for_is_looked_at() {
        let both_modes = ["events.order.*.*", "events.order.*"];
        assert_eq!(left_out_of(&[&PLACED], &both_modes), ["refunds"]);
        let all = ["events.order.*.*", "events.order.*", "refunds"];
        assert_eq!(left_out_of(&[&PLACED], &all), [""; 0]);
    }

    /// Each would be a request of its own, and what is known would end at its first message.
    #[test]
    fn fixed_subjects_of_other_aggregates_and_of_events_without_numbers_are_not_looked_at() {
        let all_of_order = ["events.order.>", "refunds"];
        assert_eq!(left_out_of(&[&PLACED, &REFUNDED], &all_of_order), [""; 0]);
        let all_of_invoice = ["events.invoice.>"];
        assert_eq!(left_out_of(&[&PAID], &all_of_invoice), ["payments"]);
    }

    #[test]
    fn default_subjects_of_each_mode_are_looked_at_unless_they_are_asked_for() {
        assert_eq!(
            left_out_of(&[&REFUNDED], &["refunds"]),
            ["events.order.*", "events.order.*.*"]
        );
        let one_mode = ["events.order.*.*", "refunds"];
        assert_eq!(left_out_of(&[&PLACED], &one_mode), ["events.order.*"]);
    }

    /// A consumer without filters is given everything; it wants whole aggregates of each type.
    #[test]
    fn nothing_is_left_out_of_everything() {
        static EVERYTHING: EventDescriptor = EventDescriptor::of_aggregate("*");
        assert_eq!(left_out_of(&[&EVERYTHING], &[">"]), [""; 0]);
        assert_eq!(left_out_of(&[&EVERYTHING, &PLACED], &[">"]), [""; 0]);
    }
}
