//! Provisions streams on three nodes.

use futures_util::future::{join, join_all};
use outbox_core::{Publisher as _, Subscriber as _, SubscriberError};
use outbox_nats::{EventStream, ProvisionError};
use outbox_testing::eventually;

use crate::environment::{LONG, Nats, PLACED, SHIPPED, answered, consumer, subscribe};
use crate::private_cluster::{PrivateCluster, others};

async fn replicas(nats: &Nats, stream: &str) -> usize {
    let stream = nats.jetstream().get_stream(stream).await.unwrap();
    stream.cached_info().config.num_replicas
}

#[tokio::test]
async fn eight_processes_create_replicated_streams_once() {
    let Some(cluster) = PrivateCluster::start().await else {
        return;
    };
    let processes = join_all((0..8).map(|_| cluster.nats())).await;
    let nats = &processes[0];
    let spec = nats.stream().with_replicas(3);
    let provision = async |process: &Nats| {
        answered(async || spec.provision_for(&process.client, [&PLACED, &SHIPPED]).await).await
    };
    let reports = join_all(processes.iter().map(provision)).await;
    assert!(reports.iter().any(|report| report.created));
    assert!(
        reports.iter().all(|report| report.warnings.is_empty()),
        "{reports:?}"
    );
    assert_eq!(replicas(nats, &nats.name).await, 3);
    for fenced in [false, true] {
        let publisher = nats.stream_in_mode(fenced).publisher(nats.client.clone());
        let warnings = answered(async || publisher.preflight().await).await;
        assert_eq!(warnings, Vec::<String>::new());
    }
}

/// Method: kill leaders until the third node can only answer that there is no leader.
#[tokio::test]
async fn lost_majority_is_no_configuration_error() {
    let Some(mut cluster) = PrivateCluster::start().await else {
        return;
    };
    let nats = cluster.nats().await;
    nats.provision_replicated().await;
    let spec = consumer(&[&PLACED]);
    let subscriber = nats.subscriber();
    subscribe(&subscriber, &spec).await;
    let leader = nats.leader(&nats.name).await;
    let other = nats.leader(&format!("{}.{}", nats.name, spec.name)).await;
    let survivor = others(&leader).find(|name| *name != other).unwrap();
    for name in others(survivor) {
        cluster.node(name).kill();
    }
    let unknown = EventStream::new("unknown")
        .with_prefix("unknown")
        .unwrap()
        .with_replicas(3);
    let refused = |error: &dyn std::fmt::Debug| format!("{error:?}").contains("10008");
    let refusal = async {
        loop {
            let provision = unknown.provision_for(&nats.client, []);
            let (made, opened) = join(provision, subscriber.subscribe(&spec)).await;
            let (made, opened) = (made.expect_err("no majority"), opened.expect_err("no majority"));
            assert!(matches!(made, ProvisionError::Unavailable { .. }), "{made:?}");
            assert!(
                matches!(opened, SubscriberError::Interrupted { .. }),
                "{opened:?}"
            );
            if refused(&made) || refused(&opened) {
                return;
            }
        }
    };
    tokio::time::timeout(LONG, refusal).await.expect("a refusal");
    cluster.restart().await;
    eventually("a subscription", async || {
        subscriber.subscribe(&spec).await.is_ok()
    })
    .await;
}
