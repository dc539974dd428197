//! Rules for deploys, in which subscriptions stop and versions share a consumer.

use super::*;

const ANY: &[&EventDescriptor] = &[NOTED, OBSERVED];

/// After a subscription stops, the broker redelivers its prefetched messages in order.
pub async fn released_prefetched_messages_come_immediately<F: SubscriberFixture>(fixture: &F) {
    let expected = publish(fixture, NOTED, "a", 20).await;
    let spec = consumer("c", &[NOTED], NEVER);
    let mut subscription = subscribe(fixture, &spec).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(next(&mut subscription).await);
    }
    held.extend(subscription.stop().await);
    assert!(
        held.is_sorted_by_key(|delivery| delivery.incoming().stream_sequence),
        "out of order"
    );
    for delivery in held {
        retry(delivery, Duration::ZERO).await;
    }
    subscription.flush().await.expect("the answers arrive");
    let mut subscription = subscribe(fixture, &spec).await;
    for expected in expected {
        let delivery = next(&mut subscription).await;
        assert_eq!(read(&delivery), expected);
        ack(delivery).await;
    }
}

/// A stopped subscription receives nothing more.
pub async fn a_stopped_subscription_receives_nothing<F: SubscriberFixture>(fixture: &F) {
    let spec = consumer("c", &[NOTED], NEVER);
    let mut stopped = subscribe(fixture, &spec).await;
    // `assert_quiet` drops a call of `next`, which leaves a pull request pending at the broker.
    assert_quiet(&mut stopped, fixture.ack_wait() / 5).await;
    let early = stopped.stop().await;
    assert_eq!(early.len(), 0, "nothing was published");
    let expected = publish(fixture, NOTED, "a", 10).await;
    sleep(fixture.ack_wait() / 5).await;
    let mut subscription = subscribe(fixture, &spec).await;
    for expected in expected {
        let delivery = next(&mut subscription).await;
        assert_eq!((read(&delivery), count(&delivery)), (expected, 1));
        ack(delivery).await;
    }
    drop(stopped);
}

/// When `flush` returns, the broker has received all answers.
pub async fn flushed_answers_have_arrived<F: SubscriberFixture>(fixture: &F) {
    publish(fixture, NOTED, "a", 20).await;
    let spec = consumer("c", &[NOTED], NEVER);
    let mut subscription = subscribe(fixture, &spec).await;
    let mut onlooker = subscribe(fixture, &spec).await;
    for _ in 0..20 {
        ack(next(&mut subscription).await).await;
    }
    stop(&mut subscription).await;
    assert_eq!(onlooker.backlog().await.expect("backlog answers"), 0);
}

/// Messages whose event type another version requested stay on the broker until answered.
pub async fn messages_requested_by_another_version_are_reported<F: SubscriberFixture>(fixture: &F) {
    let (old, new) = (
        consumer("c", &[NOTED], NEVER),
        consumer("c", &[NOTED, OBSERVED], NEVER),
    );
    let running = subscribe(fixture, &old).await;
    drop(subscribe(fixture, &new).await);
    for version in [running, subscribe(fixture, &old).await] {
        let mut version = version;
        let expected = publish(fixture, OBSERVED, "a", 1).await;
        let delivery = next_of(&mut version, ANY).await;
        assert_eq!(read(&delivery), expected[0]);
        assert!(
            is_asked_for(&delivery).await,
            "another version requested the message"
        );
        retry(delivery, Duration::ZERO).await;
        for delivery in version.stop().await {
            retry(delivery, Duration::ZERO).await;
        }
        let mut again = subscribe(fixture, &new).await;
        let delivery = next_of(&mut again, ANY).await;
        assert_eq!(read(&delivery), expected[0]);
        ack(delivery).await;
        stop(&mut again).await;
    }
}

/// `is_asked_for` returns `false` for an event type that no version requested.
pub async fn unrequested_messages_are_reported<F: SubscriberFixture>(fixture: &F) {
    let spec = ConsumerSpec {
        whole_aggregates: true,
        ..consumer("c", &[NOTED], NEVER)
    };
    let mut subscription = subscribe(fixture, &spec).await;
    publish(fixture, OBSERVED, "a", 1).await;
    publish(fixture, NOTED, "a", 1).await;
    for asked_for in [false, true] {
        let delivery = next_of(&mut subscription, ANY).await;
        assert_eq!(
            is_asked_for(&delivery).await,
            asked_for,
            "{}",
            read(&delivery).event_type
        );
        ack(delivery).await;
    }
}

/// `has_predecessors` finds predecessors of any event type, acknowledged predecessors included.
pub async fn only_predecessors_are_found_whatever_their_type<F: SubscriberFixture>(fixture: &F) {
    let mut subscription = subscribe(fixture, &consumer("c", &[NOTED, OBSERVED], NEVER)).await;
    publish(fixture, OBSERVED, "a.b", 1).await;
    publish(fixture, NOTED, "a", 1).await;
    publish(fixture, NOTED, "a.b", 1).await;
    publish(fixture, NOTED, "a", 1).await;
    for expected in [false, false, true, true] {
        let delivery = next_of(&mut subscription, ANY).await;
        assert_eq!(
            has_predecessors(&delivery).await,
            expected,
            "{:?}",
            read(&delivery)
        );
        ack(delivery).await;
        subscription.flush().await.expect("the answer arrives");
    }
}
