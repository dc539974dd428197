//! Rule for a restarted consumer.

use super::*;

/// A restarted consumer continues where it stopped.
pub async fn a_restarted_consumer_continues_at_its_position<F: SubscriberFixture>(fixture: &F) {
    let expected = publish(fixture, NOTED, "a", 6).await;
    let ack_wait = fixture.ack_wait() * 4;
    let spec = consumer("c", &[NOTED], ack_wait);
    let mut subscription = subscribe(fixture, &spec).await;
    for _ in 0..2 {
        ack(next(&mut subscription).await).await;
    }
    drop(next(&mut subscription).await);
    drop(subscription);

    let mut subscription = subscribe(fixture, &spec).await;
    let mut received = BTreeSet::new();
    for _ in 0..4 {
        let delivery = next(&mut subscription).await;
        received.insert(read(&delivery).id);
        ack(delivery).await;
    }
    assert_eq!(received, expected[2..].iter().map(|message| message.id).collect());
    while fixture.gives_again() && !received.is_empty() {
        let Some(again) = next_within(&mut subscription, &[NOTED], ack_wait * 3 / 2).await else {
            return;
        };
        assert!(
            received.remove(&read(&again).id),
            "the message was acknowledged before"
        );
        ack(again).await;
    }
    assert_quiet(&mut subscription, ack_wait * 3 / 2).await;
}
