//! Consumers that are replayed.

mod interruption;
mod shop;

use std::time::Duration;

use outbox_core::{ConsumerSpec, DomainEvent as _, StartAt, Subscriber as _};
use outbox_inbox::{
    ConsumersError, DeadLetterSelection, DeadLetters, Memory, Obstacle, PausedConsumers, Router, Unremembered,
};
use outbox_testing::eventually;

use self::shop::{ParcelMoved, Shop, before, step};
use crate::on_every_backend;
use crate::orders::{Rule, lines, numbered};
use crate::runtime::{spawn, stop, within};
use crate::support::{TestDb, slow};

fn is_refused(error: &ConsumersError, expected: &[Obstacle]) -> bool {
    matches!(error, ConsumersError::Refused(obstacles) if obstacles == expected)
}

async fn what_stands_in_the_way_of_a_move_is_said_and_nothing_is_done(test: TestDb) {
    let shop = Shop::new(test).await;
    let consumers = shop.consumers();
    shop.drain(before::router()).await;
    let replay = consumers.plan_replay("before", StartAt::Beginning, Memory::Forget);
    let replay = replay.await.unwrap();
    let not_paused = [Obstacle::NotPaused("before".to_owned())];
    assert_eq!(replay.obstacles, not_paused);
    assert!(is_refused(
        &consumers.replay(&replay).await.unwrap_err(),
        &not_paused
    ));

    shop.pause("before").await;
    // A program that uses another database.
    let spec = ConsumerSpec {
        name: "before".to_owned(),
        events: vec![ParcelMoved::DESCRIPTORS.first().unwrap()],
        ack_wait: Duration::from_secs(30),
        whole_aggregates: false,
        siblings: Vec::new(),
        in_flight_max: 1,
        prefetch: 1,
        start_at: StartAt::Beginning,
    };
    let mut subscription = shop.broker.subscriber().subscribe(&spec).await.unwrap();
    let foreign = tokio::spawn(async move {
        use outbox_core::Subscription as _;
        subscription.next().await.map(drop)
    });
    eventually("the foreign process", async || {
        let lag = consumers.lag("before").await.unwrap();
        lag.on_stream.unwrap().is_receiving
    })
    .await;
    let receiving = [Obstacle::Receiving("before".to_owned())];
    assert!(is_refused(
        &consumers.replay(&replay).await.unwrap_err(),
        &receiving
    ));
    foreign.abort();
    let _ = foreign.await;
    let pauses = PausedConsumers::new(shop.test.db.clone());
    pauses.resume("before").await.unwrap();
    shop.publish_all_again().await;
    shop.drain(before::router()).await;
    assert_eq!(shop.effects().await, [1; 5]);
}

async fn a_replay_keeps_to_its_plan_and_what_is_remembered_takes_effect_once(test: TestDb) {
    let mut shop = Shop::new(test).await;
    shop.orders.rule(9, Rule::Fatal);
    shop.publish(numbered(9, 1)).await;
    shop.drain(before::router()).await;
    shop.pause("before").await;
    let consumers = shop.consumers();
    let plan = consumers.plan_replay("before", StartAt::Beginning, Memory::Keep);
    let plan = plan.await.unwrap();
    let since = plan.rows.since.unwrap();
    assert_eq!((plan.stream_sequence, plan.messages), (1, 6), "{plan}");
    assert_eq!(plan.unremembered, [Unremembered::HandledBefore(since)]);
    assert_eq!(plan.dead_letters_again, 1, "{plan}");
    consumers.replay(&plan).await.unwrap();
    let pauses = PausedConsumers::new(shop.test.db.clone());
    assert!(pauses.resume("before").await.unwrap());
    let report = shop.drain(before::router()).await;
    assert_eq!((report.handled, report.duplicates), (0, 6), "{report:?}");
    assert_eq!(shop.effects().await, [1; 5]);

    // Without the memory, from behind the dead letter on.
    let time = shop.broker.now();
    for message in [numbered(3, 1), step(1, 3)] {
        shop.publish(message).await;
    }
    shop.drain(before::router()).await;
    shop.pause("before").await;
    let plan = consumers.plan_replay("before", StartAt::Time(time), Memory::Forget);
    let plan = plan.await.unwrap();
    assert_eq!((plan.messages, plan.dead_letters_again), (2, 0), "{plan}");
    assert_eq!(plan.unremembered, [Unremembered::Everything]);
    let replayed = consumers.replay(&plan).await.unwrap();
    assert_eq!(replayed.sequences, 1);
    assert_eq!(
        replayed.messages,
        plan.rows.handled + plan.rows.failed,
        "the dead row stays"
    );
    assert!(pauses.resume("before").await.unwrap());
    let report = shop.drain(before::router()).await;
    assert_eq!(report.handled, 2, "{report:?}");
    assert_eq!(lines(&shop.test, "parcel", 1).await, [1, 2, 3, 3]);
    assert_eq!(lines(&shop.test, "order", 3).await, [1, 1]);
    // The dead letter had no effect yet, and gets its own.
    shop.orders.rule(9, None);
    let letters = DeadLetters::new(shop.test.db.clone());
    assert_eq!(letters.retry(&DeadLetterSelection::all()).await.unwrap(), 1);
    // A drain waits for what is on the stream, not for dead letters.
    let retried = async {
        while lines(&shop.test, "order", 9).await.is_empty() {
            shop.drain(before::router()).await;
        }
    };
    within(retried).await;
    assert_eq!(lines(&shop.test, "order", 9).await, [1]);
    assert_eq!(shop.effects().await, [1; 5]);
}

/// The handler has claimed its message and not committed, so no other transaction sees its row.
async fn a_replay_waits_for_a_handler_that_runs(test: TestDb) {
    let shop = Shop::new(test).await;
    shop.orders.rule(1, Rule::Wait);
    let inbox = shop.test.inbox(&shop.broker, before::router());
    let (shutdown, run) = spawn(inbox.with_config(slow()).with_state(shop.orders.clone()));
    shop.orders
        .until("the first run", |state| {
            state.runs_of(1) >= 1 && state.runs_of(2) == 1
        })
        .await;
    shop.pause("before").await;
    let consumers = shop.consumers();
    eventually("the pause", async || {
        let lag = consumers.lag("before").await.unwrap();
        !lag.on_stream.unwrap().is_receiving
    })
    .await;
    let plan = consumers.plan_replay("before", StartAt::Beginning, Memory::Forget);
    let plan = plan.await.unwrap();
    let (replaying, at_once) = (consumers.clone(), plan.clone());
    let replay = tokio::spawn(async move { replaying.replay(&at_once).await });
    // Time in which a replay that does not wait would be done.
    tokio::time::sleep(Duration::from_millis(300)).await;
    shop.orders.rule(1, None);
    let replayed = within(replay).await.unwrap().unwrap();
    assert!(replayed.messages > plan.rows.handled, "{replayed:?} {plan}");
    stop((shutdown, run)).await;
}

async fn a_plan_says_when_strategies_are_not_known(test: TestDb) {
    let shop = Shop::new(test).await;
    shop.drain(before::router()).await;
    let consumers = shop.consumers().with_router(Router::new());
    let plan = consumers.plan_replay("before", StartAt::Beginning, Memory::Keep);
    let plan = plan.await.unwrap();
    assert!(
        plan.unremembered.contains(&Unremembered::HandlersUnknown),
        "{plan}"
    );
    shop.test.execute("DELETE FROM inbox_messages").await;
    let consumers = shop.consumers();
    let plan = consumers.plan_replay("before", StartAt::Beginning, Memory::Keep);
    assert_eq!(plan.await.unwrap().unremembered, [Unremembered::NoRows]);
}

on_every_backend!(
    what_stands_in_the_way_of_a_move_is_said_and_nothing_is_done,
    a_replay_keeps_to_its_plan_and_what_is_remembered_takes_effect_once,
    a_plan_says_when_strategies_are_not_known,
);
on_every_backend!(servers only: a_replay_waits_for_a_handler_that_runs);
