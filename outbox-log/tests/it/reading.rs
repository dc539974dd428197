//! Messages read from the log.

use outbox_core::shutdown::CancellationToken;
use outbox_core::{Events, RelayConfig};
use outbox_log::LogConfig;
use outbox_testing::conformance::probe::Probe;

use crate::support::{Place, sleep};

crate::on_a_log! {
    messages_of_many_writers_arrive_in_order_without_writes,
    transaction_of_many_windows_is_never_whole_in_memory,
    table_change_does_not_disturb_the_reading,
}

async fn messages_of_many_writers_arrive_in_order_without_writes(place: &Place) {
    let relay = place.relay().with_config(RelayConfig::default());
    let shutdown = CancellationToken::new();
    let scenario = async {
        let writers = (0..8).map(|n| place.write(n * 5..n * 5 + 5, 20));
        futures_join(writers).await;
        place.published().await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    let report = report.unwrap();
    assert_eq!((report.published, report.duplicates, report.failed), (800, 0, 0));
    let untouched =
        "SELECT count(*) FROM outbox_messages WHERE status = 4 AND published_at IS NULL AND attempts = 0";
    assert_eq!(place.number(untouched).await, 800);
    place.assert_balanced();
}

pub(crate) async fn futures_join(all: impl IntoIterator<Item = impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        all.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        match all.is_empty() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

async fn transaction_of_many_windows_is_never_whole_in_memory(place: &Place) {
    let aggregates: Vec<String> = (0..1_000).map(|n| format!("large-{n}")).collect();
    let mut first = Events::new();
    for aggregate in &aggregates {
        first.push(Probe::noted(aggregate, 1));
    }
    place.record(first).await;
    place
        .execute(
            "WITH heads AS (UPDATE outbox_aggregates SET last_sequence = 61 WHERE aggregate_id LIKE 'large-%') \
             INSERT INTO outbox_messages (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, subject, \
             content_type, payload, headers) SELECT gen_random_uuid(), m.partition_no, m.aggregate_type, m.aggregate_id, n, m.event_type, \
             m.event_version, m.subject, m.content_type, m.payload, m.headers \
             FROM generate_series(2, 61) n, outbox_messages m WHERE m.aggregate_id LIKE 'large-%' ORDER BY n, m.row_id",
        )
        .await;
    place.count_committed(&aggregates, 61);
    let relay = place.relay().with_config(RelayConfig::default());
    let (health, shutdown) = (relay.health(), CancellationToken::new());
    let scenario = async {
        let mut most = 0;
        while place.broker.publishes() < 60_000 {
            most = most.max(health.status().undecided);
            sleep(1).await;
        }
        place.write_of(&aggregates[0], 1).await;
        place.write(0..3, 2).await;
        place.published().await;
        shutdown.cancel();
        most
    };
    let (report, most) = tokio::join!(relay.run(shutdown.clone()), scenario);
    report.unwrap();
    assert!(
        (1..=LogConfig::default().window).contains(&most),
        "{most} in memory"
    );
    assert_eq!(place.copies(), 0);
    place.assert_balanced();
}

async fn table_change_does_not_disturb_the_reading(place: &Place) {
    place
        .run(async {
            place.write(0..5, 5).await;
            place
                .execute("ALTER TABLE outbox_messages ADD COLUMN remark text DEFAULT 'x'")
                .await;
            place.write(0..5, 5).await;
            place
                .execute("ALTER TABLE outbox_messages DROP COLUMN remark")
                .await;
            place.write(0..5, 5).await;
            place.published().await;
        })
        .await;
    place.assert_balanced();
}
