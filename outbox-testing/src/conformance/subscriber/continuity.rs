//! When a subscription may have missed something.
//!
//! Not here: when it has missed nothing. An implementation may know that less often than another one, so each tests it by itself.

use super::*;

/// A consumer that asks for whole aggregates.
fn whole(name: &str) -> ConsumerSpec {
    ConsumerSpec {
        whole_aggregates: true,
        // So that two subscriptions share what there is.
        prefetch: 1,
        ..consumer(name, &[NOTED], NEVER)
    }
}

/// A subscription says that it may have missed something: of whole aggregates if it does not ask for them, behind a message
/// that came twice, if another subscription takes part, and if the consumer was there before.
pub async fn a_subscription_that_may_have_missed_something_says_so<F: SubscriberFixture>(fixture: &F) {
    publish(fixture, OBSERVED, "a", 2).await;
    publish(fixture, NOTED, "a", 10).await;
    let narrow = ConsumerSpec {
        whole_aggregates: false,
        ..whole("narrow")
    };
    let mut narrow = subscribe(fixture, &narrow).await;
    assert!(
        !next(&mut narrow).await.is_unbroken(),
        "other types were left out"
    );

    let mut alone = subscribe(fixture, &whole("repeated")).await;
    retry(next(&mut alone).await, Duration::ZERO).await;
    let mut came_again = false;
    for _ in 0..9 {
        let delivery = next(&mut alone).await;
        came_again |= delivery.incoming().delivery_count > 1;
        let is_wrong = came_again && delivery.is_unbroken();
        assert!(!is_wrong, "a message has come again: {:?}", delivery.incoming());
    }
    assert!(came_again, "what was given back comes again");

    let mut one = subscribe(fixture, &whole("shared")).await;
    let mut other = subscribe(fixture, &whole("shared")).await;
    let (_theirs, mine) = (next(&mut other).await, next(&mut one).await);
    assert!(!mine.is_unbroken(), "another subscription takes part");
    one.stop().await;
    other.stop().await;
    let mut successor = subscribe(fixture, &whole("shared")).await;
    assert!(
        !next(&mut successor).await.is_unbroken(),
        "the consumer was there before"
    );
}

/// A consumer has passed messages over that nobody had asked for. A later subscription that asks for them knows that it
/// misses them, although it is given the consumer's first delivery.
pub async fn what_a_consumer_has_passed_over_counts_as_missed<F: SubscriberFixture>(fixture: &F) {
    publish(fixture, OBSERVED, "a", 2).await;
    let narrow = ConsumerSpec {
        whole_aggregates: false,
        ..whole("widened")
    };
    let mut first = subscribe(fixture, &narrow).await;
    // So that the consumer has looked at the stream.
    assert_quiet(&mut first, fixture.ack_wait() / 2).await;
    assert_eq!(first.stop().await.len(), 0);
    publish(fixture, NOTED, "a", 1).await;
    let mut widened = subscribe(fixture, &whole("widened")).await;
    let delivery = next(&mut widened).await;
    assert!(!delivery.is_unbroken(), "earlier messages were passed over");
}
