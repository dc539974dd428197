//! Durable consumers: who gets what, how often, and what happens to the consumer itself.

use std::time::Duration;

use outbox_core::{
    ConsumerSpec, Delivery as _, Publisher as _, Subscriber as _, SubscriberError, Subscription as _,
};
use outbox_nats::async_nats::jetstream::consumer::{self as js, AckPolicy, pull};
use outbox_nats::async_nats::jetstream::stream::{Config, RetentionPolicy};
use outbox_nats::{JetStreamSubscriber, Provisioning};

use crate::environment::{
    CANCELLED, Nats, PLACED, SHIPPED, SOON, consumer, event_on, eventually, message, on_both_servers,
    receive, receive_and_ack,
};

on_both_servers! {
    one_event_is_filtered_by_its_subject,
    every_wanted_event_arrives_whatever_the_server_filters_by,
    whole_aggregates_arrive_with_all_their_event_types,
    fixed_subjects_arrive_too,
    eight_processes_share_one_consumer,
    what_is_not_acknowledged_comes_again_and_is_counted,
    progress_restarts_the_wait,
    a_retry_comes_after_its_delay,
    the_in_flight_bound_holds,
    one_process_does_not_fetch_what_others_could_handle,
    backlog_counts_what_is_not_acknowledged,
    filters_of_an_existing_consumer_are_widened_and_never_narrowed,
    bounds_of_an_existing_consumer_are_updated,
    nothing_is_changed_without_the_right_to,
    a_consumer_that_cannot_be_changed_is_refused,
    a_deleted_consumer_is_gone_and_can_be_subscribed_again,
    a_deleted_stream_is_gone,
    streams_that_would_stay_silent_are_refused,
    foreign_messages_are_delivered_raw,
}

async fn subscribe_error(subscriber: &JetStreamSubscriber, spec: &ConsumerSpec) -> SubscriberError {
    subscriber.subscribe(spec).await.expect_err("a refusal")
}

async fn info(nats: &Nats, spec: &ConsumerSpec) -> js::Info {
    nats.jetstream()
        .get_stream(&nats.name)
        .await
        .unwrap()
        .consumer_info(&spec.name)
        .await
        .unwrap()
}

async fn publish_one_of_each(nats: &Nats) {
    for event in [&PLACED, &SHIPPED, &CANCELLED] {
        nats.publisher().publish(&message(event, "a.b", 1)).await.unwrap();
    }
}

async fn one_event_is_filtered_by_its_subject(nats: &Nats) {
    nats.provision().await;
    publish_one_of_each(nats).await;
    let mut subscription = nats.subscribe(&consumer(&[&SHIPPED])).await;
    let delivery = receive(&mut subscription).await;
    let incoming = delivery.incoming();
    assert_eq!(incoming.subject, format!("{}.order.a%2Eb.shipped", nats.prefix));
    assert_eq!((incoming.stream_sequence, incoming.delivery_count), (2, 1));
    delivery.ack().await.unwrap();
    eventually("an empty backlog", async || {
        subscription_backlog(nats, &consumer(&[&SHIPPED])).await == 0
    })
    .await;
}

async fn subscription_backlog(nats: &Nats, spec: &ConsumerSpec) -> u64 {
    nats.subscribe(spec).await.backlog().await.unwrap()
}

async fn every_wanted_event_arrives_whatever_the_server_filters_by(nats: &Nats) {
    nats.provision().await;
    publish_one_of_each(nats).await;
    let spec = consumer(&[&PLACED, &SHIPPED]);
    let mut subscription = nats.subscribe(&spec).await;
    let config = info(nats, &spec).await.config;
    let placed_and_shipped = [nats.prefix.filter(&PLACED), nats.prefix.filter(&SHIPPED)];
    if nats.client.is_server_compatible(2, 10, 0) {
        assert_eq!(config.filter_subjects, placed_and_shipped);
        assert_eq!(
            receive_and_ack(&mut subscription, 2).await,
            ["a.b/placed/1", "a.b/shipped/1"]
        );
    } else {
        // One filter that covers both; what else matches is the inbox's to skip.
        assert_eq!(config.filter_subject, format!("{}.order.*.*", nats.prefix));
        let all = ["a.b/placed/1", "a.b/shipped/1", "a.b/cancelled/1"];
        assert_eq!(receive_and_ack(&mut subscription, 3).await, all);
    }
}

/// A consumer that counts the messages of an aggregate must see each of them.
async fn whole_aggregates_arrive_with_all_their_event_types(nats: &Nats) {
    nats.provision().await;
    publish_one_of_each(nats).await;
    let spec = ConsumerSpec {
        whole_aggregates: true,
        ..consumer(&[&PLACED])
    };
    let mut subscription = nats.subscribe(&spec).await;
    assert_eq!(
        receive_and_ack(&mut subscription, 3).await,
        ["a.b/placed/1", "a.b/shipped/1", "a.b/cancelled/1"]
    );
}

/// On 2.9 no single filter lies within one subject of the stream here, so the consumer gets everything.
async fn fixed_subjects_arrive_too(nats: &Nats) {
    let legacy = event_on("shipped", format!("legacy-{}", nats.name));
    nats.stream()
        .provision_for(&nats.client, [&PLACED, legacy])
        .await
        .unwrap();
    nats.publisher().publish(&message(&PLACED, "1", 1)).await.unwrap();
    nats.publisher().publish(&message(legacy, "1", 2)).await.unwrap();
    let mut subscription = nats.subscribe(&consumer(&[&PLACED, legacy])).await;
    assert_eq!(
        receive_and_ack(&mut subscription, 2).await,
        ["1/placed/1", "1/shipped/2"]
    );
}

async fn eight_processes_share_one_consumer(nats: &Nats) {
    nats.provision().await;
    let spec = consumer(&[&PLACED, &SHIPPED]);
    let subscriptions = futures_util::future::join_all((0..8).map(|_| nats.subscribe(&spec))).await;
    for n in 0..40 {
        nats.publisher()
            .publish(&message(&PLACED, &n.to_string(), 1))
            .await
            .unwrap();
    }
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let tasks: Vec<_> = subscriptions
        .into_iter()
        .map(|mut subscription| {
            let sender = sender.clone();
            tokio::spawn(async move {
                loop {
                    let delivery = subscription.next().await.unwrap();
                    sender.send(delivery.incoming().stream_sequence).unwrap();
                    delivery.ack().await.unwrap();
                }
            })
        })
        .collect();
    let mut stream_sequences = Vec::new();
    while stream_sequences.len() < 40 {
        stream_sequences.push(
            tokio::time::timeout(SOON, receiver.recv())
                .await
                .unwrap()
                .unwrap(),
        );
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    stream_sequences.sort_unstable();
    assert_eq!(stream_sequences, (1..=40).collect::<Vec<_>>());
}

async fn what_is_not_acknowledged_comes_again_and_is_counted(nats: &Nats) {
    nats.provision().await;
    let spec = ConsumerSpec {
        ack_wait: Duration::from_millis(500),
        ..consumer(&[&PLACED])
    };
    nats.publisher().publish(&message(&PLACED, "1", 1)).await.unwrap();
    let mut subscription = nats.subscribe(&spec).await;
    for count in 1..=3 {
        assert_eq!(receive(&mut subscription).await.incoming().delivery_count, count);
    }
    // Another process takes over what this one holds.
    drop(subscription);
    let mut other = nats.subscribe(&spec).await;
    let delivery = receive(&mut other).await;
    assert!(delivery.incoming().delivery_count >= 4);
    delivery.ack().await.unwrap();
    eventually("the acknowledgement", async || {
        subscription_backlog(nats, &spec).await == 0
    })
    .await;
}

async fn progress_restarts_the_wait(nats: &Nats) {
    nats.provision().await;
    let spec = ConsumerSpec {
        ack_wait: Duration::from_secs(1),
        ..consumer(&[&PLACED])
    };
    nats.publisher().publish(&message(&PLACED, "1", 1)).await.unwrap();
    let mut subscription = nats.subscribe(&spec).await;
    let delivery = receive(&mut subscription).await;
    for _ in 0..8 {
        let again = tokio::time::timeout(Duration::from_millis(250), subscription.next()).await;
        assert!(again.is_err(), "delivered again although it was still worked on");
        delivery.progress().await.unwrap();
    }
    delivery.ack().await.unwrap();
    eventually("the acknowledgement", async || {
        subscription_backlog(nats, &spec).await == 0
    })
    .await;
}

async fn a_retry_comes_after_its_delay(nats: &Nats) {
    nats.provision().await;
    nats.publisher().publish(&message(&PLACED, "1", 1)).await.unwrap();
    let mut subscription = nats.subscribe(&consumer(&[&PLACED])).await;
    let delivery = receive(&mut subscription).await;
    let started = tokio::time::Instant::now();
    delivery.retry_after(Duration::from_millis(700)).await.unwrap();
    let again = receive(&mut subscription).await;
    assert!(
        started.elapsed() >= Duration::from_millis(600),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(again.incoming().delivery_count, 2);
}

async fn the_in_flight_bound_holds(nats: &Nats) {
    nats.provision().await;
    for n in 1..=10 {
        nats.publisher().publish(&message(&PLACED, "1", n)).await.unwrap();
    }
    let spec = ConsumerSpec {
        in_flight_max: 3,
        ..consumer(&[&PLACED])
    };
    let mut subscription = nats.subscribe(&spec).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(receive(&mut subscription).await);
    }
    assert!(
        tokio::time::timeout(Duration::from_millis(500), subscription.next())
            .await
            .is_err()
    );
    held.pop().unwrap().ack().await.unwrap();
    assert_eq!(receive(&mut subscription).await.incoming().stream_sequence, 4);
}

/// All processes together may have many unanswered; one of them has only a few that it has not asked for.
async fn one_process_does_not_fetch_what_others_could_handle(nats: &Nats) {
    nats.provision().await;
    for n in 1..=10 {
        nats.publisher().publish(&message(&PLACED, "1", n)).await.unwrap();
    }
    let spec = ConsumerSpec {
        in_flight_max: 6,
        prefetch: 2,
        ..consumer(&[&PLACED])
    };
    // Nobody acknowledges, so what one has taken the other cannot get.
    let mut first = nats.subscribe(&spec).await;
    receive(&mut first).await;
    let mut second = nats.subscribe(&spec).await;
    for _ in 0..3 {
        assert_eq!(receive(&mut second).await.incoming().delivery_count, 1);
    }
}

async fn backlog_counts_what_is_not_acknowledged(nats: &Nats) {
    nats.provision().await;
    for n in 1..=5 {
        nats.publisher().publish(&message(&PLACED, "1", n)).await.unwrap();
    }
    let mut subscription = nats.subscribe(&consumer(&[&PLACED])).await;
    assert_eq!(subscription.backlog().await.unwrap(), 5);
    let delivery = receive(&mut subscription).await;
    assert_eq!(
        subscription.backlog().await.unwrap(),
        5,
        "delivered is not handled"
    );
    delivery.ack().await.unwrap();
    eventually("the acknowledgement", async || {
        subscription_backlog(nats, &consumer(&[&PLACED])).await == 4
    })
    .await;
}

/// A rolling upgrade runs the old and the new version at once; narrowing would make the new one miss events.
async fn filters_of_an_existing_consumer_are_widened_and_never_narrowed(nats: &Nats) {
    nats.provision().await;
    let mut subscription = nats.subscribe(&consumer(&[&PLACED])).await;
    nats.publisher().publish(&message(&PLACED, "1", 1)).await.unwrap();
    receive_and_ack(&mut subscription, 1).await;
    assert_eq!(subscription.stop().await.len(), 0);
    nats.subscribe(&consumer(&[&SHIPPED])).await;
    let mut old_version = nats.subscribe(&consumer(&[&PLACED])).await;
    nats.publisher().publish(&message(&PLACED, "1", 2)).await.unwrap();
    nats.publisher()
        .publish(&message(&SHIPPED, "1", 3))
        .await
        .unwrap();
    let mut payloads = receive_and_ack(&mut old_version, 2).await;
    payloads.sort();
    assert_eq!(payloads, ["1/placed/2", "1/shipped/3"]);
}

async fn bounds_of_an_existing_consumer_are_updated(nats: &Nats) {
    nats.provision().await;
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    let foreign = pull::Config {
        durable_name: Some("billing".to_owned()),
        description: Some("of the operator".to_owned()),
        ack_policy: AckPolicy::Explicit,
        max_deliver: 3,
        headers_only: true,
        inactive_threshold: Duration::from_mins(5),
        ..pull::Config::default()
    };
    stream.create_consumer(foreign).await.unwrap();
    let spec = ConsumerSpec {
        ack_wait: Duration::from_secs(7),
        in_flight_max: 11,
        ..consumer(&[&PLACED])
    };
    nats.subscribe(&spec).await;
    let config = info(nats, &spec).await.config;
    assert_eq!(
        (config.ack_wait, config.max_ack_pending, config.max_deliver),
        (spec.ack_wait, 11, -1)
    );
    assert!(!config.headers_only && config.inactive_threshold.is_zero());
    let description = config.description.unwrap();
    assert_eq!(description, "of the operator [asked for: order.placed]");
}

async fn nothing_is_changed_without_the_right_to(nats: &Nats) {
    nats.provision().await;
    let verify_only = nats.subscriber_config().provisioning(Provisioning::VerifyOnly);
    let subscriber = nats.subscriber().with_config(verify_only);
    let error = subscribe_error(&subscriber, &consumer(&[&PLACED])).await;
    assert!(matches!(error, SubscriberError::Configuration { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains(&format!("nats consumer add {} billing", nats.name)),
        "{error}"
    );

    nats.subscribe(&consumer(&[&PLACED])).await;
    subscriber.subscribe(&consumer(&[&PLACED])).await.unwrap();
    let before = info(nats, &consumer(&[&PLACED])).await.config;
    for (different, seen, needed) in [
        (
            ConsumerSpec {
                ack_wait: Duration::from_secs(7),
                ..consumer(&[&PLACED])
            },
            "30s",
            "7s",
        ),
        (consumer(&[&PLACED, &SHIPPED]), ".placed", ".shipped"),
    ] {
        let error = subscribe_error(&subscriber, &different).await;
        assert!(matches!(error, SubscriberError::Configuration { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(seen) && text.contains(needed), "{error}");
        let edit = format!("nats consumer edit {} billing --wait=", nats.name);
        assert!(text.contains(&edit) && text.ends_with("]'"), "{error}");
    }
    assert_eq!(info(nats, &consumer(&[&PLACED])).await.config, before);
}

async fn a_consumer_that_cannot_be_changed_is_refused(nats: &Nats) {
    nats.provision().await;
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    let config = pull::Config {
        durable_name: Some("billing".to_owned()),
        ack_policy: AckPolicy::All,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.unwrap();
    let error = subscribe_error(&nats.subscriber(), &consumer(&[&PLACED])).await;
    assert!(matches!(error, SubscriberError::Configuration { .. }), "{error}");

    let push = js::push::Config {
        durable_name: Some("push".to_owned()),
        deliver_subject: format!("deliver-{}", nats.name),
        ack_policy: AckPolicy::Explicit,
        ..js::push::Config::default()
    };
    stream.create_consumer(push).await.unwrap();
    let error = subscribe_error(
        &nats.subscriber(),
        &ConsumerSpec {
            name: "push".to_owned(),
            ..consumer(&[&PLACED])
        },
    )
    .await;
    assert!(matches!(error, SubscriberError::Configuration { .. }), "{error}");
}

/// Calls `next` until it is over.
async fn until_gone(subscription: &mut outbox_nats::JetStreamSubscription) {
    let gone = async {
        loop {
            match subscription.next().await {
                Err(SubscriberError::Gone { .. }) => return,
                Err(SubscriberError::Interrupted { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(SOON, gone)
        .await
        .expect("the end of the subscription");
}

async fn a_deleted_consumer_is_gone_and_can_be_subscribed_again(nats: &Nats) {
    nats.provision().await;
    let spec = consumer(&[&PLACED]);
    let mut subscription = nats.subscribe(&spec).await;
    nats.publisher().publish(&message(&PLACED, "1", 1)).await.unwrap();
    receive_and_ack(&mut subscription, 1).await;
    nats.jetstream()
        .delete_consumer_from_stream("billing", &nats.name)
        .await
        .unwrap();
    until_gone(&mut subscription).await;
    until_gone(&mut subscription).await;

    // The progress went with it, so everything comes again; that is what the inbox is for.
    let mut subscription = nats.subscribe(&spec).await;
    assert_eq!(receive_and_ack(&mut subscription, 1).await, ["1/placed/1"]);
}

async fn a_deleted_stream_is_gone(nats: &Nats) {
    nats.provision().await;
    let mut subscription = nats.subscribe(&consumer(&[&PLACED])).await;
    nats.publisher().publish(&message(&PLACED, "1", 1)).await.unwrap();
    receive_and_ack(&mut subscription, 1).await;
    nats.delete_stream().await;
    until_gone(&mut subscription).await;
}

async fn streams_that_would_stay_silent_are_refused(nats: &Nats) {
    let missing = subscribe_error(&nats.subscriber(), &consumer(&[&PLACED])).await;
    assert!(
        matches!(missing, SubscriberError::Configuration { .. }),
        "{missing}"
    );
    assert!(missing.to_string().contains("nats stream add"), "{missing}");

    let config = Config {
        name: nats.name.clone(),
        subjects: vec![nats.prefix.filter(&PLACED)],
        ..Config::default()
    };
    nats.jetstream().create_stream(&config).await.unwrap();
    let uncaptured = subscribe_error(&nats.subscriber(), &consumer(&[&PLACED, &SHIPPED])).await;
    assert!(
        matches!(uncaptured, SubscriberError::Configuration { .. }),
        "{uncaptured}"
    );
    assert!(
        uncaptured.to_string().contains(&nats.prefix.filter(&SHIPPED)),
        "{uncaptured}"
    );
    nats.delete_stream().await;

    let config = Config {
        retention: RetentionPolicy::WorkQueue,
        ..config
    };
    nats.jetstream().create_stream(config).await.unwrap();
    let retention = subscribe_error(&nats.subscriber(), &consumer(&[&PLACED])).await;
    assert!(
        matches!(retention, SubscriberError::Configuration { .. }),
        "{retention}"
    );
}

async fn foreign_messages_are_delivered_raw(nats: &Nats) {
    nats.provision().await;
    let subject = format!("{}.order.1.placed", nats.prefix);
    nats.jetstream()
        .publish(subject.clone(), "raw".into())
        .await
        .unwrap()
        .await
        .unwrap();
    let mut subscription = nats.subscribe(&consumer(&[&PLACED])).await;
    let delivery = receive(&mut subscription).await;
    let incoming = delivery.incoming();
    assert_eq!(
        (incoming.subject.as_str(), incoming.payload.as_ref()),
        (subject.as_str(), &b"raw"[..])
    );
    assert_eq!(incoming.headers, []);
}
