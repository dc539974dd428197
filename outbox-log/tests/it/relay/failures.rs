//! Broken readings, dead relays, replaced logs, and a full disk.

use std::sync::Arc;

use outbox_core::{Announcement, Destination, OutboxStore, OwnerId, Registration, RelayError, RelayMode};

use super::*;

/// A relay waits five seconds for its leases, and a new slot waits for every open transaction.
#[tokio::test(start_paused = true)]
async fn slowly_opening_log_is_read_eventually() {
    let logged = Logged::new();
    logged.log.open_slowly(Duration::from_secs(40));
    credit(&logged.store, 5, 2);
    let relay = logged.relay();
    logged.run(&relay, logged.drained()).await;
    logged.assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn a_reading_that_breaks_loses_nothing() {
    let logged = Logged::new();
    logged.broker.fail_matching(
        |message| message.sequence.is_some_and(|sequence| sequence % 7 == 3),
        FailureClass::Transient,
    );
    let relay = logged.relay();
    logged
        .run(&relay, async {
            for round in 0..40 {
                credit(&logged.store, 10, 2);
                sleep(37 * (round % 5)).await;
                logged.log.interrupt();
                if round % 6 == 0 {
                    logged.store.fail_next(3);
                }
                if round % 9 == 0 {
                    logged.store.lose_answers(3);
                }
            }
            logged.broker.clear_faults();
            logged.drained().await;
        })
        .await;
    logged.assert_balanced();
}

/// The relay is killed at any moment, without a last checkpoint.
#[tokio::test(start_paused = true)]
async fn a_relay_that_is_killed_loses_nothing() {
    let logged = Logged::new();
    logged.broker.fail_matching(
        |message| message.sequence.is_some_and(|sequence| sequence % 5 == 2),
        FailureClass::Transient,
    );
    for round in 0..60 {
        credit(&logged.store, 10, 3);
        let relay = logged.relay();
        let _alone = outbox_core::wake::isolate();
        let killed = tokio::time::timeout(
            Duration::from_millis(13 * round),
            relay.run(CancellationToken::new()),
        );
        assert!(killed.await.is_err());
        logged.store.expire_leases();
    }
    logged.broker.clear_faults();
    logged.run(&logged.relay(), logged.drained()).await;
    logged.assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn replaced_log_loses_nothing() {
    let logged = Logged::new();
    let relay = logged.relay();
    logged
        .run(&relay, async {
            for round in 0..10 {
                credit(&logged.store, 10, 5);
                sleep(round % 3).await;
                logged.log.lose();
                credit(&logged.store, 10, 1);
                sleep(300 * round).await;
            }
            logged.drained().await;
        })
        .await;
    logged.assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn standby_relay_takes_over_when_the_reader_ends() {
    let logged = Logged::new();
    let (first, second) = (logged.relay(), logged.relay());
    let (first_health, second_health) = (first.health(), second.health());
    let _alone = outbox_core::wake::isolate();
    let stop_first = CancellationToken::new();
    let scenario = async {
        credit(&logged.store, 10, 5);
        logged.drained().await;
        while !second_health.status().stands_by {
            sleep(10).await;
        }
        assert!(first_health.status().reads && !second_health.status().reads);
        assert_eq!(second_health.now(), Health::Alive, "standing by is healthy");
        stop_first.cancel();
        credit(&logged.store, 10, 5);
        logged.drained().await;
        assert!(second_health.status().reads);
    };
    let second_run = logged.run(&second, scenario);
    let (ended, report) = tokio::join!(first.run(stop_first.clone()), second_run);
    assert_eq!(ended.unwrap().published + report.published, 100);
    logged.assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn log_over_its_limit_is_read_while_the_database_is_slow() {
    let logged = Logged::new();
    let config = LogConfig::default().retained_max(1_000);
    logged.log.measure_slowly(config.checkpoint_every);
    let relay = logged.relay_with(quick(), config);
    let health = relay.health();
    logged
        .run(&relay, async {
            logged.broker.set_down(true);
            credit(&logged.store, 10, 30);
            while !health.status().adopts {
                sleep(100).await;
            }
            credit(&logged.store, 10, 30);
            let read_on = async {
                while logged.log.stored() < Position(6_000) {
                    sleep(100).await;
                }
            };
            let read_on = tokio::time::timeout(Duration::from_secs(600), read_on).await;
            assert!(read_on.is_ok(), "{:?}", health.status());
            logged.broker.set_down(false);
            logged.drained().await;
        })
        .await;
    logged.assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn log_over_its_limit_is_released_to_the_table() {
    let logged = Logged::new();
    let relay = logged.relay_with(quick(), LogConfig::default().retained_max(1_000));
    let health = relay.health();
    logged
        .run(&relay, async {
            credit(&logged.store, 10, 1);
            logged.drained().await;
            logged.broker.set_down(true);
            credit(&logged.store, 10, 30);
            while !health.status().adopts {
                sleep(100).await;
            }
            assert!(
                matches!(health.now(), Health::Degraded { .. }),
                "{}",
                health.now()
            );
            while logged.log.stored() < Position(3_100) {
                sleep(100).await;
            }
            assert!(logged.store.rows().iter().any(|row| row.status != LOGGED));
            logged.broker.set_down(false);
            logged.drained().await;
            while health.status().adopts {
                sleep(100).await;
            }
            credit(&logged.store, 10, 1);
            logged.drained().await;
        })
        .await;
    assert_eq!(statuses(&logged.store, 3).last(), Some(&LOGGED));
    logged.assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn broker_outage_leaves_messages_in_the_log() {
    let logged = Logged::new();
    let relay = logged.relay();
    logged
        .run(&relay, async {
            logged.broker.set_down(true);
            credit(&logged.store, 10, 30);
            sleep(120_000).await;
            logged.broker.set_down(false);
            logged.drained().await;
        })
        .await;
    logged.assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn writes_elsewhere_move_the_position_of_an_idle_outbox() {
    let logged = Logged::new();
    let relay = logged.relay();
    logged
        .run(&relay, async {
            credit(&logged.store, 1, 1);
            logged.drained().await;
            logged.log.write_elsewhere(5_000);
            sleep(40_000).await;
            assert_eq!(logged.log.stored(), Position(5_010));
        })
        .await;
}

/// A commit that waits for a standby server is in the log before it is visible in the table.
#[tokio::test(start_paused = true)]
async fn invisible_message_is_adopted_once_visible() {
    let logged = Logged::new();
    let later = logged.store.now() + Duration::from_secs(30);
    let delayed = NewMessage::from_event(&Credited { account: 1, cents: 1 });
    let events = Events::new().with(delayed.unwrap().available_at(later));
    logged.store.record(events).unwrap();
    logged.log.hide_next(50);
    let relay = logged.relay();
    logged.run(&relay, logged.drained()).await;
    assert_eq!(statuses(&logged.store, 1), [Published]);
    logged.assert_balanced();
}

/// After an interruption, the log returns messages again. Until the relay has queried the table,
/// these messages may be pending there.
#[tokio::test(start_paused = true)]
async fn message_with_unknown_owner_is_not_overtaken() {
    let logged = Logged::new();
    logged.broker.set_down(true);
    credit(&logged.store, 3, 3);
    let relay = logged.relay();
    logged
        .run(&relay, async {
            sleep(500).await;
            logged.log.hide_next(20);
            logged.log.interrupt();
            credit(&logged.store, 3, 3);
            logged.broker.set_down(false);
            logged.drained().await;
        })
        .await;
    logged.assert_balanced();
}

#[tokio::test(start_paused = true)]
async fn log_does_not_overtake_the_last_retried_message() {
    let logged = Logged::new();
    let config = quick().poll_max(Duration::from_secs(20));
    credit(&logged.store, 1, 1);
    logged.broker.fail_matching(|_| true, FailureClass::Permanent);
    let relay = logged.relay_with(config, LogConfig::default());
    logged
        .run(&relay, async {
            while statuses(&logged.store, 1) != [Dead] {
                sleep(10).await;
            }
            sleep(60_000).await;
            logged.broker.clear_faults();
            for _ in 0..20 {
                logged.store.retry(&Selection::dead_letters()).await.unwrap();
                credit(&logged.store, 1, 1);
                sleep(1_000).await;
            }
            logged.drained().await;
        })
        .await;
    logged.assert_balanced();
}

/// The relay holds hundreds of messages in memory, and the next reader reads the same messages.
#[tokio::test(start_paused = true)]
async fn relay_stops_publishing_when_its_reading_breaks() {
    for opens_in in [Duration::from_secs(2), Duration::ZERO] {
        let mut logged = Logged::new();
        logged.broker = MemoryBroker::new().with_latency(Duration::from_millis(25));
        logged.log.open_slowly(opens_in);
        let window = 10;
        let config = quick().window(window);
        let log_config = LogConfig::default().checkpoint_every(Duration::from_millis(10));
        let first = logged.relay_with(config.clone(), log_config.clone());
        let second = logged.relay_with(config.seed(Some(8)), log_config);
        let (first_health, second_health) = (first.health(), second.health());
        let stop_first = CancellationToken::new();
        let until = async |holds: &dyn Fn() -> bool| {
            while !holds() {
                sleep(1).await;
            }
        };
        let stand_by = async {
            until(&|| first_health.status().reads).await;
            let scenario = async {
                until(&|| second_health.status().stands_by).await;
                sleep(1_000).await;
                credit(&logged.store, 50, 10);
                until(&|| logged.broker.messages().len() >= 100).await;
                logged.log.interrupt();
                logged.drained().await;
                stop_first.cancel();
            };
            logged.run(&second, scenario).await
        };
        let (ended, other) = tokio::join!(first.run(stop_first.clone()), stand_by);
        ended.unwrap();
        assert_eq!(other.published > 0, !opens_in.is_zero(), "{other:?}");
        // After a change of the reader, messages in flight and messages confirmed after the last
        // checkpoint are published twice.
        let copies = logged.broker.publishes() - 500;
        assert!(copies <= 2 * window as u64, "{opens_in:?}: {copies} copies");
        logged.assert_balanced();
    }
}

/// A replaced relay may still make messages pending that its successor has read.
#[tokio::test(start_paused = true)]
async fn adoption_by_a_replaced_relay_is_not_overtaken() {
    let mut logged = Logged::new();
    logged.broker = MemoryBroker::new().with_latency(Duration::from_millis(300));
    // Slow openings let the other relay take over when a reading breaks.
    logged.log.open_slowly(Duration::from_millis(300));
    let (first, second) = (
        logged.relay(),
        logged.relay_with(quick().seed(Some(8)), LogConfig::default()),
    );
    let healths = [first.health(), second.health()];
    let stop_first = CancellationToken::new();
    let mut have_read = [false; 2];
    let scenario = async {
        for round in 0..60 {
            credit(&logged.store, 5, 4);
            logged.broker.fail_next(7, FailureClass::Transient);
            logged.log.interrupt();
            sleep(170 * (round % 12)).await;
            for (has_read, health) in have_read.iter_mut().zip(&healths) {
                *has_read |= health.status().reads;
            }
        }
        logged.drained().await;
        stop_first.cancel();
    };
    let second_run = logged.run(&second, scenario);
    let (ended, _) = tokio::join!(first.run(stop_first.clone()), second_run);
    ended.unwrap();
    assert_eq!(have_read, [true, true]);
    assert!(logged.store.rows().iter().any(|row| row.status == Published));
    logged.assert_balanced();
}

/// The database's limit on retained WAL may be lower than `retained_max`.
#[tokio::test(start_paused = true)]
async fn log_near_the_limit_of_the_database_is_released() {
    let logged = Logged::new();
    logged.log.tell_limit(3_000);
    let relay = logged.relay();
    let health = relay.health();
    logged
        .run(&relay, async {
            logged.broker.set_down(true);
            credit(&logged.store, 10, 20);
            sleep(20_000).await;
            assert!(!health.status().adopts, "there is room: {:?}", health.status());
            credit(&logged.store, 10, 5);
            while !health.status().adopts {
                sleep(100).await;
            }
            assert!(
                matches!(health.now(), Health::Degraded { .. }),
                "{}",
                health.now()
            );
            while logged.log.stored() < Position(2_500) {
                sleep(100).await;
            }
            logged.broker.set_down(false);
            logged.drained().await;
            while health.status().adopts {
                sleep(100).await;
            }
        })
        .await;
    assert!(logged.store.rows().iter().any(|row| row.status == Published));
    logged.assert_balanced();
}

/// The table relay first checks for relays with another destination.
#[tokio::test(start_paused = true)]
async fn a_log_relay_with_another_destination_reads_nothing() {
    let logged = Logged::new();
    let destination = |stream: &str| Destination {
        stream: stream.to_owned(),
        instance: None,
        subjects: "events.>".to_owned(),
        source: "shop".to_owned(),
    };
    let elsewhere = Announcement {
        registration: Arc::new(Registration::new(
            RelayMode::Polling,
            Some(destination("ORDERS")),
            None,
        )),
        ..Announcement::default()
    };
    let ttl = Duration::from_secs(600);
    logged
        .store
        .announce(OwnerId::fresh(), ttl, &elsewhere)
        .await
        .unwrap();
    credit(&logged.store, 20, 1);
    let publisher = logged.broker.publisher().with_destination(destination("STAGING"));
    let relay = LogRelay::new(logged.store.clone(), logged.log.clone(), publisher).with_config(quick());
    let refused = relay.run(CancellationToken::new()).await;
    assert!(
        matches!(refused, Err(RelayError::OtherDestination(_))),
        "{refused:?}"
    );
    assert_eq!(logged.broker.publishes(), 0);
}
