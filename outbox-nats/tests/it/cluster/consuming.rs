//! Consumers during failures of their leader, stream leader or server.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use outbox_core::{ConsumerSpec, Delivery as _, Subscription as _};
use outbox_nats::JetStreamSubscription;

use super::publishing::{confirmed, impatient};
use crate::environment::{LONG, Nats, PLACED, consumer, message, receive, subscribe};
use crate::private_cluster::PrivateCluster;

fn spec() -> ConsumerSpec {
    ConsumerSpec {
        ack_wait: Duration::from_secs(1),
        in_flight_max: 64,
        prefetch: 32,
        ..consumer(&[&PLACED])
    }
}

async fn publish(nats: &Nats, numbers: std::ops::Range<u32>) {
    let publisher = impatient(nats);
    let messages = numbers.map(|n| message(&PLACED, &n.to_string(), 1));
    let publish = async |message| confirmed(&publisher, &message).await;
    join_all(messages.map(publish)).await;
}

async fn handle(subscription: &mut JetStreamSubscription, handled: &mut HashSet<bytes::Bytes>, count: usize) {
    while handled.len() < count {
        let delivery = receive(subscription).await;
        handled.insert(delivery.incoming().payload.clone());
        delivery.ack().await.unwrap();
    }
}

async fn settle(subscription: &mut JetStreamSubscription) {
    let settled = async {
        while !matches!(subscription.backlog().await, Ok(0)) {
            if let Ok(Ok(again)) = tokio::time::timeout(Duration::from_millis(200), subscription.next()).await
            {
                again.ack().await.unwrap();
            }
        }
    };
    tokio::time::timeout(LONG, settled).await.expect("no backlog");
}

#[tokio::test]
async fn leader_changes_lose_no_message_and_no_acknowledgement() {
    let Some(cluster) = PrivateCluster::start().await else {
        return;
    };
    let nats = cluster.nats().await;
    nats.provision_replicated().await;
    let mut subscription = nats.subscribe(&spec()).await;
    publish(&nats, 0..600).await;
    let (stream, consumer) = (nats.name.clone(), format!("{}.{}", nats.name, spec().name));
    let mut handled = HashSet::new();
    for (leads, count) in [&consumer, &stream, &consumer, &stream, &consumer]
        .into_iter()
        .zip([100, 200, 300, 400, 500])
    {
        handle(&mut subscription, &mut handled, count).await;
        nats.step_down(leads).await;
    }
    handle(&mut subscription, &mut handled, 600).await;
    settle(&mut subscription).await;

    nats.step_down(&consumer).await;
    nats.step_down(&stream).await;
    publish(&nats, 600..601).await;
    let mut again = 0;
    loop {
        let delivery = receive(&mut subscription).await;
        delivery.ack().await.unwrap();
        let payload = &delivery.incoming().payload;
        if !handled.contains(payload) {
            assert_eq!(payload, "600/placed/1");
            break;
        }
        again += 1;
        assert!(again <= spec().in_flight_max, "{payload:?} comes again");
    }
}

#[tokio::test]
async fn killed_node_interrupts_subscriptions_without_loss() {
    let Some(mut cluster) = PrivateCluster::start().await else {
        return;
    };
    let observer = cluster.nats().await;
    observer.provision_replicated().await;
    observer.subscribe(&spec()).await;
    let consumer = format!("{}.{}", observer.name, spec().name);
    let leader = observer.leader(&consumer).await;
    let nats = cluster.nats_at(&leader).await;
    let subscriber = observer.stream().subscriber(nats.client.clone());
    let mut subscription = subscribe(&subscriber, &spec()).await;
    publish(&observer, 0..200).await;
    let mut handled = HashSet::new();
    handle(&mut subscription, &mut handled, 100).await;
    cluster.node(&leader).kill();
    handle(&mut subscription, &mut handled, 200).await;
    settle(&mut subscription).await;
}
