//! Fenced publishing on three nodes.

use std::error::Error as _;
use std::time::Duration;

use futures_util::future::join_all;
use outbox_core::{FailureClass, Publisher as _};
use outbox_nats::async_nats::jetstream::stream::Config;
use outbox_nats::{JetStreamPublisher, connect_options};

use super::publishing::{confirmed, publisher_of};
use crate::environment::{Nats, PLACED, answered, connected, message};
use crate::private_cluster::{PrivateCluster, others};

const WINDOW: Duration = Duration::from_millis(100);

fn fenced(nats: &Nats, of: &Nats) -> JetStreamPublisher {
    publisher_of(nats, &of.stream().with_strong_mode())
}

async fn payloads(nats: &Nats) -> Vec<String> {
    let payload = |entry: outbox_testing::LogEntry| entry.message.unwrap().payload;
    let stored = nats.log().await.into_iter().map(payload);
    stored
        .map(|payload| String::from_utf8(payload.to_vec()).unwrap())
        .collect()
}

/// Method: stop the followers, so that the leader receives a message and cannot store the message.
#[tokio::test]
async fn no_message_overtakes_a_message_in_flight() {
    let Some(mut cluster) = PrivateCluster::start().await else {
        return;
    };
    let observer = cluster.nats().await;
    observer.provision_replicated().await;
    let leader = observer.leader(&observer.name).await;
    let options = connect_options().ignore_discovered_servers();
    let client = connected(cluster.node(&leader).url(), options).await;
    let nats = Nats::with(client);
    let owner = observer
        .stream()
        .with_strong_mode()
        .publisher(nats.client.clone())
        .with_config(nats.publisher_config());
    let zombie = fenced(&nats, &observer);
    let numbered = |n| message(&PLACED, "1", n);
    confirmed(&zombie, &numbered(1)).await;
    answered(async || owner.preflight().await).await;
    for name in others(&leader) {
        cluster.node(name).pause();
    }
    let mut sequence = 1;
    let (in_flight, error) = loop {
        sequence += 1;
        let message = numbered(sequence);
        if let Err(error) = zombie.publish(&message).await {
            break (message, error);
        }
    };
    assert_eq!(error.class(), FailureClass::Unknown, "{error:?}");
    let following = numbered(sequence + 1);
    let copy = owner.publish(&in_flight).await.unwrap_err();
    let next = owner.publish(&following).await.unwrap_err();
    for name in others(&leader) {
        cluster.node(name).resume();
    }
    assert_eq!(copy.class(), FailureClass::Transient, "{copy:?}");
    assert_eq!(next.class(), FailureClass::Unknown, "{next:?}");
    let refusal = format!("{:?}", next.source());
    assert!(refusal.contains("10071") || refusal.contains("10164"), "{next:?}");
    confirmed(&owner, &in_flight).await;
    confirmed(&owner, &following).await;
    let expected: Vec<_> = (1..=sequence + 1).map(|n| format!("1/placed/{n}")).collect();
    assert_eq!(payloads(&observer).await, expected);
}

#[tokio::test]
async fn leader_changes_after_the_duplicate_window_store_no_copy() {
    let Some(cluster) = PrivateCluster::start().await else {
        return;
    };
    let nats = cluster.nats().await;
    answered(async || {
        let config = Config {
            name: nats.name.clone(),
            subjects: vec![nats.prefix.wildcard()],
            num_replicas: 3,
            duplicate_window: WINDOW,
            ..Config::default()
        };
        let made = nats.jetstream().create_stream(config).await;
        made.map_err(|error| outbox_nats::ProvisionError::Unavailable {
            stream: nats.name.clone(),
            source: error.into(),
        })
    })
    .await;
    let publisher = fenced(&nats, &nats);
    for round in 0..5 {
        let aggregates = (0..50).map(async |aggregate: u32| {
            for n in 1..=5 {
                let mut message = message(&PLACED, &aggregate.to_string(), 5 * round + n);
                message.created_at = time::OffsetDateTime::now_utc();
                confirmed(&publisher, &message).await;
            }
        });
        nats.during_step_down(&nats.name, join_all(aggregates)).await;
    }
    let stored = payloads(&nats).await;
    for aggregate in 0..50 {
        let prefix = format!("{aggregate}/");
        let of_it: Vec<_> = stored
            .iter()
            .filter(|payload| payload.starts_with(&prefix))
            .collect();
        let expected: Vec<_> = (1..=25).map(|n| format!("{aggregate}/placed/{n}")).collect();
        assert_eq!(of_it, expected.iter().collect::<Vec<_>>());
    }
}
