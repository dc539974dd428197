//! Rules for the standing of a consumer: its backlog and its receivers.

use super::*;

pub(super) async fn standing<F: SubscriberFixture>(fixture: &F, name: &str) -> Option<ConsumerStanding> {
    answered(async || fixture.subscriber().standing(name).await).await
}

pub(super) async fn settles<F: SubscriberFixture>(
    fixture: &F,
    name: &str,
    expected: impl Fn(&ConsumerStanding) -> bool,
) -> Option<ConsumerStanding> {
    let settled = async {
        loop {
            match standing(fixture, name).await {
                Some(standing) if expected(&standing) => return standing,
                _ => sleep(Duration::from_millis(50)).await,
            }
        }
    };
    timeout(SOON, settled).await.ok()
}

/// The standing of a consumer counts its backlog, also without a running process.
pub async fn a_standing_counts_the_backlog<F: SubscriberFixture>(fixture: &F) {
    assert_eq!(standing(fixture, "c").await, None, "there is no such consumer");
    publish(fixture, NOTED, "a", 3).await;
    publish(fixture, OBSERVED, "b", 2).await;
    let spec = consumer("c", &[NOTED], NEVER);
    let mut subscription = subscribe(fixture, &spec).await;
    let first = next(&mut subscription).await;
    let first_at = first.incoming().stream_sequence;
    let waiting = |standing: &ConsumerStanding| standing.undelivered + standing.unacknowledged == 3;
    let seen = settles(fixture, "c", waiting).await.expect("three messages wait");
    assert!(seen.unacknowledged >= 1, "{seen:?}");
    let bound = spec.in_flight_max as u64;
    assert_eq!(seen.max_unacknowledged, Some(bound), "{seen:?}");
    assert!(seen.floor < first_at, "{seen:?}");
    let pause = fixture.ack_wait();
    sleep(pause).await;
    if seen.oldest_age.is_some() {
        let mut age = None;
        eventually("the age of the oldest message", async || {
            let later = standing(fixture, "c").await.expect("it exists");
            age = later.oldest_age;
            age.is_some()
        })
        .await;
        assert!(age >= Some(pause / 2), "{age:?} after {pause:?}");
    }
    ack(first).await;
    for _ in 0..2 {
        ack(next(&mut subscription).await).await;
    }
    stop(&mut subscription).await;
    drop(subscription);
    let nothing = |standing: &ConsumerStanding| standing.undelivered + standing.unacknowledged == 0;
    let idle = settles(fixture, "c", nothing)
        .await
        .expect("the backlog is empty");
    assert_eq!(idle.oldest_age, None, "{idle:?}");
    assert!(idle.floor >= first_at, "{idle:?}");
    publish(fixture, NOTED, "a", 2).await;
    let two = |standing: &ConsumerStanding| (standing.undelivered, standing.unacknowledged) == (2, 0);
    let settled = settles(fixture, "c", two).await;
    settled.expect("two messages wait for a process");
}

/// The standing of a consumer reports whether a process requests messages.
pub async fn a_standing_reports_active_receivers<F: SubscriberFixture>(fixture: &F) {
    let mut subscription = subscribe(fixture, &consumer("c", &[NOTED], NEVER)).await;
    let receiving = settles(fixture, "c", |standing| standing.is_receiving);
    let seen = tokio::select! {
        seen = receiving => seen,
        delivery = subscription.next() => panic!("{:?}", delivery.map(drop)),
    };
    assert!(seen.is_some(), "a process receives");
    subscription.stop().await;
    drop(subscription);
    let seen = settles(fixture, "c", |standing| !standing.is_receiving).await;
    assert!(seen.is_some(), "no process receives");
}
