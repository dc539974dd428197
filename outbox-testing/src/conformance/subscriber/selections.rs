//! Rules for selections such as `order.*`, which include event types unknown to the program.

use super::subjects::publish_exported;
use super::*;

const PROBES: &EventDescriptor = &EventDescriptor::of_aggregate("probe");

const UNHEARD: &EventDescriptor = &EventDescriptor {
    version: 1,
    ..EventDescriptor::of_type("probe", "unheard")
};

/// All event types of the aggregate type arrive.
pub async fn a_selected_aggregate_type_arrives_whole<F: SubscriberFixture>(fixture: &F) {
    let mut subscription = subscribe(fixture, &consumer("c", &[PROBES], NEVER)).await;
    let noted = publish(fixture, NOTED, "a.b", 1).await;
    let unheard = publish(fixture, UNHEARD, "a", 1).await;
    for expected in [&noted[0], &unheard[0]] {
        let delivery = next_of(&mut subscription, &[NOTED, UNHEARD]).await;
        assert_eq!(&read(&delivery), expected);
        assert!(is_asked_for(&delivery).await);
        ack(delivery).await;
    }
}

/// A selection of everything includes messages with fixed subjects.
pub async fn a_selection_of_everything_receives_everything<F: SubscriberFixture>(fixture: &F) {
    let spec = consumer("c", &[&EventDescriptor::EVERYTHING], NEVER);
    let mut subscription = subscribe(fixture, &spec).await;
    let noted = publish(fixture, NOTED, "a", 1).await;
    let exported = publish_exported(fixture, 2).await;
    let other = Message {
        aggregate: Aggregate::new("other", "a"),
        event_type: "other.noted".to_owned(),
        ..message(NOTED, "a", 1)
    };
    fixture.publish(other.clone()).await;
    for expected in [&noted[0], &exported, &other] {
        let delivery = timeout(SOON, subscription.next())
            .await
            .expect("every message arrives");
        let delivery = delivery.expect("the subscription lasts");
        assert_eq!(read(&delivery).id, expected.id);
        assert!(is_asked_for(&delivery).await);
        ack(delivery).await;
    }
}

/// A message requested only by a selection counts as requested, so that another version does not
/// skip it.
pub async fn messages_requested_by_a_selection_are_reported<F: SubscriberFixture>(fixture: &F) {
    drop(subscribe(fixture, &consumer("c", &[PROBES], NEVER)).await);
    let mut subscription = subscribe(fixture, &consumer("c", &[NOTED], NEVER)).await;
    let unheard = publish(fixture, UNHEARD, "a", 1).await;
    let delivery = next_of(&mut subscription, &[UNHEARD]).await;
    assert_eq!(read(&delivery), unheard[0]);
    assert!(is_asked_for(&delivery).await);
    ack(delivery).await;
}
