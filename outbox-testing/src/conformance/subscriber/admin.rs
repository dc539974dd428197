//! What operators do to consumers on the broker. A suite of its own: a subscriber need not offer it.

use super::*;
use outbox_core::consumer_admin::ConsumerAdmin;

use super::standing::settles;
use super::starts::APART;

/// Receives these messages and no others, and acknowledges them.
async fn gets<F: SubscriberFixture>(fixture: &F, name: &str, expected: &[&Message]) {
    let mut subscription = subscribe(fixture, &consumer(name, &[NOTED], NEVER)).await;
    for expected in expected {
        let delivery = next(&mut subscription).await;
        assert_eq!(read(&delivery).id, expected.id, "of consumer {name}");
        ack(delivery).await;
    }
    stop(&mut subscription).await;
    let nothing = |standing: &ConsumerStanding| standing.undelivered + standing.unacknowledged == 0;
    assert!(
        settles(fixture, name, nothing).await.is_some(),
        "more waits for {name}"
    );
}

fn is_refused<T>(result: Result<T, SubscriberError>) -> bool {
    matches!(result, Err(SubscriberError::Configuration { .. }))
}

/// A consumer that is placed is given the messages that were foreseen, acknowledged ones too. It may start at the
/// beginning, at a time, or behind the last message. Placing it again changes nothing.
pub async fn what_is_foreseen_is_what_a_placed_consumer_gets<F>(fixture: &F)
where
    F: SubscriberFixture<Subscriber: ConsumerAdmin>,
{
    let subscriber = fixture.subscriber();
    assert!(is_refused(subscriber.foresee("c", StartAt::New).await));
    assert!(is_refused(subscriber.place("c", 1).await));
    let early = publish(fixture, NOTED, "a", 2).await;
    publish(fixture, OBSERVED, "b", 2).await;
    sleep(APART).await;
    let time = fixture.now();
    sleep(APART).await;
    let late = publish(fixture, NOTED, "c", 1).await;
    let all: Vec<_> = early.iter().chain(&late).collect();
    gets(fixture, "c", &all).await;
    for (start_at, expected) in [
        (StartAt::Time(time), &all[2..]),
        (StartAt::Beginning, &all[..]),
        (StartAt::New, &[]),
    ] {
        let foreseen = subscriber.foresee("c", start_at).await.expect("an answer");
        assert_eq!(foreseen.messages, expected.len() as u64, "{start_at:?}");
        for _ in 0..2 {
            let placed = subscriber.place("c", foreseen.stream_sequence).await;
            placed.expect("it is placed");
        }
        gets(fixture, "c", expected).await;
    }
}

/// Makes one test per promise of a [`ConsumerAdmin`](outbox_core::ConsumerAdmin); arguments as of
/// [`subscriber_conformance!`](crate::subscriber_conformance).
#[macro_export]
macro_rules! consumer_admin_conformance {
    ($(#[$($test:tt)*])+ $fixture:expr) => {
        $crate::__promises!(subscriber, [$(#[$($test)*])+], $fixture, [
            what_is_foreseen_is_what_a_placed_consumer_gets,
        ]);
    };
}
