//! A publisher, a subscriber and a stream created from one `EventStream` use the same names.

use std::time::Duration;

use outbox_core::{Delivery as _, FailureClass, Publisher as _, Subscriber as _, codec};
use outbox_nats::{EventStream, ProvisionError};

use crate::environment::{
    Nats, PLACED, SHIPPED, answered, consumer, message, on_both_servers, publish, receive, receive_and_ack,
    refused, subscribe,
};

on_both_servers! {
    settings_reach_stream_publisher_and_subscriber,
    strong_mode_reaches_stream_publisher_and_subscriber,
    all_linked_events_are_provisioned,
    shared_subjects_do_not_affect_consumers,
    shards_and_strong_mode_exclude_each_other,
}

async fn filters(nats: &Nats) -> Vec<String> {
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    let config = stream.consumer_info(&consumer(&[]).name).await.unwrap().config;
    match config.filter_subjects.is_empty() {
        true => vec![config.filter_subject],
        false => config.filter_subjects,
    }
}

async fn settings_reach_stream_publisher_and_subscriber(nats: &Nats) {
    let stream = EventStream::new(&nats.name)
        .with_prefix(nats.prefix.as_str())
        .unwrap()
        .with_max_age(Duration::from_hours(24))
        .with_max_bytes(1 << 20)
        .with_duplicate_window(Duration::from_mins(15));
    assert_eq!(
        (stream.name(), stream.prefix()),
        (nats.name.as_str(), &nats.prefix)
    );

    let report = answered(async || stream.provision_for(&nats.client, [&PLACED]).await).await;
    assert!(report.created);
    let config = nats.stream_config().await;
    assert_eq!(config.subjects, [nats.prefix.wildcard()]);
    assert_eq!(
        (config.max_age, config.max_bytes, config.duplicate_window),
        (Duration::from_hours(24), 1 << 20, Duration::from_mins(15))
    );

    let publisher = stream.publisher(nats.client.clone());
    let warnings = answered(async || publisher.preflight().await).await;
    assert_eq!(warnings, Vec::<String>::new());
    publish(&publisher, &message(&PLACED, "1", 1)).await;
    let placed = format!("{}.order.1.placed", nats.prefix);
    assert_eq!(nats.stored().await[0].0, placed);

    let subscriber = stream.subscriber(nats.client.clone());
    let mut subscription = subscribe(&subscriber, &consumer(&[&PLACED])).await;
    assert_eq!(filters(nats).await, [nats.prefix.filter(&PLACED)]);
    assert_eq!(filters(nats).await, stream.consumer_filters([&PLACED], false));
    let delivery = receive(&mut subscription).await;
    assert_eq!(delivery.incoming().subject, placed);
    delivery.ack().await.unwrap();
}

async fn all_linked_events_are_provisioned(nats: &Nats) {
    let orders = nats.stream().with_subject(format!("{}.order.>", nats.prefix));
    let error = refused(async || orders.provision(&nats.client).await).await;
    assert!(error.to_string().contains("event `account.credited`"), "{error}");
    let report = answered(async || nats.stream().provision(&nats.client).await).await;
    assert!(report.created);
}

async fn shared_subjects_do_not_affect_consumers(nats: &Nats) {
    nats.provision().await;
    let sharded = nats.stream().with_subject_shards(2);
    let publishers = [nats.publisher(), sharded.publisher(nats.client.clone())];
    let mut expected = Vec::new();
    for (n, publisher) in (1..).zip(&publishers) {
        for id in ["1", "2", "a.b *", "4", "5"] {
            publish(publisher, &message(&PLACED, id, n)).await;
            publish(publisher, &message(&SHIPPED, id, n)).await;
            expected.push(format!("{id}/placed/{n}"));
        }
    }
    let mut subjects: Vec<_> = nats.stored().await.split_off(10);
    subjects.sort();
    subjects.dedup_by(|one, other| one.0 == other.0);
    assert_eq!(subjects.len(), 4, "two shards of two event types: {subjects:?}");
    for (name, stream) in [("shards", sharded), ("none", nats.stream())] {
        let subscriber = stream.subscriber(nats.client.clone());
        let spec = outbox_core::ConsumerSpec {
            name: name.to_owned(),
            ..consumer(&[&PLACED])
        };
        let mut subscription = subscribe(&subscriber, &spec).await;
        let mut received = Vec::new();
        while received.len() < expected.len() {
            let delivery = receive(&mut subscription).await;
            let incoming = delivery.incoming();
            let message = codec::decode(&incoming.headers, incoming.payload.clone()).unwrap();
            assert!(subscriber.belongs(&message, &incoming.subject, Some(&[])));
            received.push(String::from_utf8(message.payload.to_vec()).unwrap());
            delivery.ack().await.unwrap();
        }
        assert_eq!(received, expected);
    }
}

async fn shards_and_strong_mode_exclude_each_other(nats: &Nats) {
    nats.provision().await;
    for stream in [
        nats.stream().with_strong_mode().with_subject_shards(64),
        nats.stream().with_subject_shards(0),
        nats.stream().with_subject_shards(65_537),
    ] {
        let error = stream.provision_for(&nats.client, [&PLACED]).await.unwrap_err();
        assert!(matches!(error, ProvisionError::Misfit { .. }), "{error}");
        let error = stream
            .publisher(nats.client.clone())
            .preflight()
            .await
            .unwrap_err();
        assert_eq!(error.class(), FailureClass::Configuration);
    }
}

async fn strong_mode_reaches_stream_publisher_and_subscriber(nats: &Nats) {
    let stream = nats.stream().with_strong_mode();
    let aggregates = format!("{}.order.*", nats.prefix);

    let narrow = stream.clone().with_subject(nats.prefix.filter(&PLACED));
    let error = refused(async || narrow.provision_for(&nats.client, [&PLACED]).await).await;
    assert!(error.to_string().contains(&aggregates), "{error}");
    answered(async || stream.provision_for(&nats.client, [&PLACED, &SHIPPED]).await).await;

    let publisher = stream.publisher(nats.client.clone());
    answered(async || publisher.preflight().await).await;
    publish(&publisher, &message(&PLACED, "1", 1)).await;
    publish(&publisher, &message(&SHIPPED, "1", 2)).await;
    let subject = format!("{}.order.1", nats.prefix);
    assert!(nats.stored().await.iter().all(|(stored, _)| *stored == subject));

    let subscriber = stream.subscriber(nats.client.clone());
    let mut subscription = subscribe(&subscriber, &consumer(&[&PLACED, &SHIPPED])).await;
    if nats.client.is_server_compatible(2, 10, 0) {
        assert!(filters(nats).await.contains(&aggregates));
        let mut kept = filters(nats).await;
        kept.sort();
        assert_eq!(kept, stream.consumer_filters([&PLACED, &SHIPPED], false));
    }
    assert_eq!(
        receive_and_ack(&mut subscription, 2).await,
        ["1/placed/1", "1/shipped/2"]
    );
}
