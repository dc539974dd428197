//! Conformance suite of [`Subscriber`]. Waits are small multiples of
//! [`SubscriberFixture::ack_wait`].
//!
//! Invariant: the fixture's stream is empty and has no consumers.

mod deploys;
mod facts;
mod resumption;
mod selections;
mod standing;
mod starts;
mod subjects;
mod support;

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, sleep, timeout};

use super::probe::{NOTED, OBSERVED, message};
use crate::eventually;
use outbox_core::event::EventDescriptor;
use outbox_core::message::{Aggregate, Message};
use outbox_core::subscriber::*;
use support::*;

pub use deploys::*;
pub use facts::*;
pub use resumption::*;
pub use selections::*;
pub use standing::*;
pub use starts::*;
pub use subjects::*;

/// One empty stream without other users.
pub trait SubscriberFixture: Send + Sync + 'static {
    /// The subscriber type under test.
    type Subscriber: Subscriber;

    /// The subscriber under test.
    fn subscriber(&self) -> &Self::Subscriber;

    /// Publishes a message encoded by [`outbox_core::codec`] and waits until it is stored.
    fn publish(&self, message: Message) -> impl Future<Output = ()> + Send;

    /// The shortest reliable `ack_wait`: about 500 ms for a server, any value with a paused clock.
    fn ack_wait(&self) -> Duration;

    /// The broker's clock. Default: the local clock.
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    /// A subject that the stream captures, other than the default subjects.
    fn fixed_subject(&self) -> String;

    /// Whether the broker may redeliver a dropped subscription's message with a wrong delivery
    /// count. Default: `false`.
    fn gives_again(&self) -> bool {
        false
    }
}

/// Messages arrive unchanged, in stream order.
pub async fn wanted_messages_arrive_in_order<F: SubscriberFixture>(fixture: &F) {
    let mut expected = publish(fixture, NOTED, "a", 5).await;
    let spec = consumer("c", &[NOTED, OBSERVED], NEVER);
    let mut subscription = subscribe(fixture, &spec).await;
    expected.extend(publish(fixture, OBSERVED, "b", 5).await);
    expected.extend(publish(fixture, NOTED, "a.b *", 5).await);
    let mut stream_sequence = 0;
    for expected in expected {
        let delivery = next_of(&mut subscription, &spec.events).await;
        assert_eq!((read(&delivery), count(&delivery)), (expected, 1));
        let before = std::mem::replace(&mut stream_sequence, delivery.incoming().stream_sequence);
        assert!(stream_sequence > before, "stream sequences rise");
        ack(delivery).await;
    }
}

/// The broker redelivers an unacknowledged message after `ack_wait`, with its delivery count.
pub async fn unacknowledged_messages_come_again<F: SubscriberFixture>(fixture: &F) {
    let expected = publish(fixture, NOTED, "a", 1).await;
    let began = Instant::now();
    let mut subscription = subscribe(fixture, &consumer("c", &[NOTED], fixture.ack_wait())).await;
    let (mut highest, mut deliveries, mut waits, mut kept) = (0, 0, 0, None);
    while highest < 3 {
        let delivery = next(&mut subscription).await;
        assert_eq!(read(&delivery), expected[0]);
        let before = highest;
        highest = counted(fixture, &delivery, before);
        deliveries += 1;
        assert!(
            deliveries < 10,
            "{deliveries} deliveries, and the highest number is {highest}"
        );
        if before > 0 && highest == before + 1 {
            waits += 1;
            let waited = began.elapsed();
            let least = fixture.ack_wait() * waits * 2 / 3;
            assert!(waited > least, "redelivered {waits} times within {waited:?}");
        }
        kept = (highest == 2).then_some(delivery);
    }
    drop(kept);
}

/// A message is redelivered after its retry delay, which may be shorter or longer than `ack_wait`.
pub async fn a_retry_comes_after_its_delay<F: SubscriberFixture>(fixture: &F) {
    publish(fixture, NOTED, "a", 1).await;
    let mut subscription = subscribe(fixture, &consumer("c", &[NOTED], NEVER)).await;
    let delay = fixture.ack_wait() * 2;
    let delivery = next(&mut subscription).await;
    let answered_at = Instant::now();
    retry(delivery, delay).await;
    let delivery = next(&mut subscription).await;
    let waited = answered_at.elapsed();
    assert!(
        waited > delay / 2,
        "redelivered after {waited:?} instead of {delay:?}"
    );
    counted(fixture, &delivery, 1);
    ack(delivery).await;
    assert_quiet(&mut subscription, delay).await;
}

/// A waiting retry does not delay other messages.
pub async fn a_retry_does_not_delay_other_messages<F: SubscriberFixture>(fixture: &F) {
    let expected = publish(fixture, NOTED, "a", 2).await;
    let mut subscription = subscribe(fixture, &consumer("c", &[NOTED], NEVER)).await;
    retry(next(&mut subscription).await, NEVER).await;
    assert_eq!(read(&next(&mut subscription).await), expected[1]);
}

/// Each consumer receives all messages.
pub async fn each_consumer_gets_everything<F: SubscriberFixture>(fixture: &F) {
    let expected = publish(fixture, NOTED, "a", 5).await;
    for name in ["one", "two"] {
        let mut subscription = subscribe(fixture, &consumer(name, &[NOTED], NEVER)).await;
        for expected in &expected {
            let delivery = next(&mut subscription).await;
            assert_eq!(&read(&delivery), expected, "of consumer {name}");
            ack(delivery).await;
        }
    }
}

/// Subscriptions of one consumer share its messages.
pub async fn subscriptions_of_one_consumer_share<F: SubscriberFixture>(fixture: &F) {
    let spec = consumer("c", &[NOTED], fixture.ack_wait() * 8);
    let mut one = subscribe(fixture, &spec).await;
    let mut two = subscribe(fixture, &spec).await;
    let expected = publish(fixture, NOTED, "a", 20).await;
    let mut received: Vec<Message> = Vec::new();
    while received.len() < expected.len() {
        let delivery: DeliveryOf<F> = tokio::select! {
            delivery = next(&mut one) => delivery,
            delivery = next(&mut two) => delivery,
        };
        assert_eq!(count(&delivery), 1, "came twice: {:?}", delivery.incoming());
        received.push(read(&delivery));
        ack(delivery).await;
    }
    let ids: BTreeSet<_> = received.iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), expected.len(), "both subscriptions received a message");

    let left = publish(fixture, NOTED, "b", 1).await;
    let taken = tokio::select! {
        delivery = next(&mut one) => { drop(one); (read(&delivery), two) }
        delivery = next(&mut two) => { drop(two); (read(&delivery), one) }
    };
    let (message, mut survivor) = taken;
    assert_eq!(message, left[0]);
    let delivery = next(&mut survivor).await;
    assert_eq!(
        read(&delivery),
        message,
        "the other subscription receives the remaining message"
    );
    counted(fixture, &delivery, 1);
}

/// `in_flight_max` bounds the unacknowledged messages of a consumer.
pub async fn in_flight_messages_are_bounded<F: SubscriberFixture>(fixture: &F) {
    publish(fixture, NOTED, "a", 10).await;
    let spec = ConsumerSpec {
        in_flight_max: 3,
        ..consumer("c", &[NOTED], NEVER)
    };
    let mut subscription = subscribe(fixture, &spec).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(next(&mut subscription).await);
    }
    assert_quiet(&mut subscription, fixture.ack_wait()).await;
    for delivery in held.drain(..) {
        ack(delivery).await;
    }
    for _ in 0..3 {
        held.push(next(&mut subscription).await);
    }
    assert_quiet(&mut subscription, fixture.ack_wait()).await;
}

/// Messages of unwanted event types do not block wanted messages.
pub async fn other_types_do_not_block<F: SubscriberFixture>(fixture: &F) {
    publish(fixture, OBSERVED, "a", 50).await;
    let expected = publish(fixture, NOTED, "a", 1).await;
    let spec = ConsumerSpec {
        in_flight_max: 2,
        ..consumer("c", &[NOTED], NEVER)
    };
    let mut subscription = subscribe(fixture, &spec).await;
    assert_eq!(read(&next(&mut subscription).await), expected[0]);
}

/// Progress reports postpone redelivery.
pub async fn progress_postpones_redelivery<F: SubscriberFixture>(fixture: &F) {
    publish(fixture, NOTED, "a", 1).await;
    let ack_wait = fixture.ack_wait() * 4;
    let mut subscription = subscribe(fixture, &consumer("c", &[NOTED], ack_wait)).await;
    let (mut told, mut silence) = (Instant::now(), Duration::ZERO);
    let mut delivery = next(&mut subscription).await;
    let (mut highest, mut beginnings, mut reports) = (1, 1, 0);
    while reports < 6 {
        let asked = Instant::now();
        let again = next_within(&mut subscription, &[NOTED], fixture.ack_wait()).await;
        silence = silence.max(told.elapsed());
        let Some(again) = again else {
            told = Instant::now();
            delivery.progress().await.expect("progress is sent");
            reports += 1;
            continue;
        };
        assert!(
            silence > ack_wait / 2 && beginnings < 10,
            "redelivered in spite of progress reports: {silence:?} without a report, with an ack_wait of {ack_wait:?}"
        );
        highest = counted(fixture, &again, highest);
        (delivery, told, silence, reports) = (again, asked, Duration::ZERO, 0);
        beginnings += 1;
    }
    counted(fixture, &next(&mut subscription).await, highest);
}

/// The backlog counts unacknowledged messages.
pub async fn the_backlog_counts_down<F: SubscriberFixture>(fixture: &F) {
    publish(fixture, NOTED, "a", 5).await;
    let mut subscription = subscribe(fixture, &consumer("c", &[NOTED], NEVER)).await;
    for remaining in (0..5).rev() {
        let delivery = next(&mut subscription).await;
        backlog_settles_at(&mut subscription, remaining + 1).await;
        ack(delivery).await;
        backlog_settles_at(&mut subscription, remaining).await;
    }
}

async fn backlog_settles_at<S: Subscription>(subscription: &mut S, expected: u64) {
    eventually("the backlog", async || {
        subscription.backlog().await.expect("backlog answers") == expected
    })
    .await;
}

/// Dropping `next` loses no message.
pub async fn a_dropped_wait_loses_nothing<F: SubscriberFixture>(fixture: &F) {
    let mut subscription = subscribe(fixture, &consumer("c", &[NOTED], fixture.ack_wait())).await;
    let mut received = BTreeSet::new();
    let expected = async {
        sleep(Duration::from_millis(30)).await;
        publish(fixture, NOTED, "a", 20).await
    };
    let receive = async {
        // The timeouts differ, so that calls of `next` are dropped at every step.
        for milliseconds in (1..=20).cycle() {
            if received.len() == 20 {
                break;
            }
            let wait = Duration::from_millis(milliseconds);
            if let Some(delivery) = next_within(&mut subscription, &[NOTED], wait).await {
                received.insert(read(&delivery).id);
                ack(delivery).await;
            }
        }
    };
    let (expected, received_all) = tokio::join!(expected, timeout(SOON, receive));
    assert!(
        received_all.is_ok(),
        "only {} of 20 messages arrived",
        received.len()
    );
    assert_eq!(received, expected.iter().map(|message| message.id).collect());
}

/// Generates the tests of a subscriber from test attributes and an expression (may await): an
/// `Option` of a fresh [`SubscriberFixture`](crate::conformance::subscriber::SubscriberFixture).
/// `None` skips the test.
#[macro_export]
macro_rules! subscriber_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(subscriber, [$(#[$($test)*])+], $fixture, [
            wanted_messages_arrive_in_order,
            unacknowledged_messages_come_again,
            a_retry_comes_after_its_delay,
            a_retry_does_not_delay_other_messages,
            a_restarted_consumer_continues_at_its_position,
            each_consumer_gets_everything,
            subscriptions_of_one_consumer_share,
            in_flight_messages_are_bounded,
            other_types_do_not_block,
            progress_postpones_redelivery,
            the_backlog_counts_down,
            a_dropped_wait_loses_nothing,
            released_prefetched_messages_come_immediately,
            a_stopped_subscription_receives_nothing,
            flushed_answers_have_arrived,
            messages_requested_by_another_version_are_reported,
            unrequested_messages_are_reported,
            only_predecessors_are_found_whatever_their_type,
            a_new_consumer_starts_at_the_requested_position,
            an_existing_consumer_keeps_its_position,
            messages_before_the_start_are_no_predecessors,
            siblings_with_a_fixed_subject_arrive,
            a_selected_aggregate_type_arrives_whole,
            a_selection_of_everything_receives_everything,
            messages_requested_by_a_selection_are_reported,
            a_message_belongs_on_its_own_subjects_only,
            facts_describe_the_stream,
            a_standing_counts_the_backlog,
            a_standing_reports_active_receivers,
        ]);
    };
}
