//! Rules for the start position.

use super::*;

/// A pause that exceeds the clock differences on one machine.
pub(super) const APART: Duration = Duration::from_millis(100);

const TO_COME: Duration = Duration::from_secs(3600);

fn starting(name: &str, start_at: StartAt) -> ConsumerSpec {
    ConsumerSpec {
        start_at,
        ..consumer(name, &[NOTED], NEVER)
    }
}

async fn receives<F: SubscriberFixture>(subscription: &mut SubscriptionOf<F>, expected: &[&Message]) {
    for expected in expected {
        let delivery = next(subscription).await;
        assert_eq!(read(&delivery).id, expected.id);
        ack(delivery).await;
    }
}

/// A new consumer starts at the beginning, at a time, or with new messages. A start time in the
/// future means new messages.
pub async fn a_new_consumer_starts_at_the_requested_position<F: SubscriberFixture>(fixture: &F) {
    let old = publish(fixture, NOTED, "a", 1).await;
    sleep(APART).await;
    let time = fixture.now();
    sleep(APART).await;
    let late = publish(fixture, NOTED, "b", 1).await;
    let mut all = subscribe(fixture, &starting("all", StartAt::Beginning)).await;
    let mut timed = subscribe(fixture, &starting("timed", StartAt::Time(time))).await;
    let mut new = subscribe(fixture, &starting("new", StartAt::New)).await;
    let mut early = subscribe(fixture, &starting("early", StartAt::Time(time + TO_COME))).await;
    let later = publish(fixture, NOTED, "c", 1).await;
    receives::<F>(&mut all, &[&old[0], &late[0], &later[0]]).await;
    receives::<F>(&mut timed, &[&late[0], &later[0]]).await;
    receives::<F>(&mut new, &[&later[0]]).await;
    receives::<F>(&mut early, &[&later[0]]).await;
}

/// An existing consumer keeps its position.
pub async fn an_existing_consumer_keeps_its_position<F: SubscriberFixture>(fixture: &F) {
    let mut first = subscribe(fixture, &starting("c", StartAt::Beginning)).await;
    assert_eq!(first.stop().await.len(), 0);
    let messages = publish(fixture, NOTED, "a", 1).await;
    let mut again = subscribe(fixture, &starting("c", StartAt::New)).await;
    receives::<F>(&mut again, &[&messages[0]]).await;
    again.flush().await.expect("the answer arrives");
    again.stop().await;
    let later = publish(fixture, NOTED, "b", 1).await;
    let mut again = subscribe(fixture, &starting("c", StartAt::Time(fixture.now()))).await;
    receives::<F>(&mut again, &[&later[0]]).await;
}

/// Messages before the start position of a consumer are not predecessors.
pub async fn messages_before_the_start_are_no_predecessors<F: SubscriberFixture>(fixture: &F) {
    publish(fixture, NOTED, "a", 2).await;
    sleep(APART).await;
    let time = fixture.now();
    let (after, all) = (vec![false, true], vec![false, true, true, true]);
    let starts = [
        (StartAt::New, &after),
        (StartAt::Time(time), &after),
        (StartAt::Time(time + TO_COME), &after),
        (StartAt::Beginning, &all),
    ];
    let spec = |number: usize, start_at| starting(&format!("c{number}"), start_at);
    for (number, (start_at, _)) in starts.iter().enumerate() {
        if *start_at != StartAt::Beginning {
            let mut first = subscribe(fixture, &spec(number, *start_at)).await;
            assert_eq!(first.stop().await.len(), 0, "{start_at:?}");
        }
    }
    sleep(APART).await;
    publish(fixture, NOTED, "a", 2).await;
    for (number, (start_at, expected)) in starts.into_iter().enumerate() {
        let mut subscription = subscribe(fixture, &spec(number, start_at)).await;
        for expected in expected {
            let delivery = next(&mut subscription).await;
            let found = has_predecessors(&delivery).await;
            assert_eq!(found, *expected, "{start_at:?}: {:?}", read(&delivery));
            ack(delivery).await;
        }
    }
}
