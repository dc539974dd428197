//! Tests of a broker that lost confirmed messages.

use outbox_core::relay::reconcile::{self, ReconcileError, Span};
use outbox_testing::Ledger;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[tokio::test(start_paused = true)]
async fn reconcile_republishes_only_lost_messages() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 30, 100);
    relay_of(&store, &broker, quick()).drain().await.unwrap();
    broker.lose_tail(700);
    assert_eq!(broker.log().len(), 2300);
    let span = Span {
        from: store.now() - Duration::from_secs(3600),
        until: store.now() + Duration::from_secs(1),
    };
    let found = reconcile::missing(&store, &broker, span).await.unwrap();
    assert_eq!((found.compared, found.missing, found.published), (3000, 700, 0));
    let publisher = broker.publisher();
    let done = reconcile::reconcile(&store, &publisher, &broker, span, Duration::MAX).await;
    let done = done.unwrap();
    assert_eq!((done.missing, done.published), (700, 700));
    let ledger = Ledger::of(&store, &broker);
    ledger.assert_balanced();
    assert_eq!(ledger.copies(), 0);
    let again = reconcile::missing(&store, &broker, span).await.unwrap();
    assert_eq!((again.compared, again.missing), (3000, 0));
}

#[tokio::test(start_paused = true)]
async fn reconcile_rejects_spans_beyond_consumer_retention() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    credit(&store, 1, 3);
    relay_of(&store, &broker, quick()).drain().await.unwrap();
    broker.lose_tail(3);
    let now = time::OffsetDateTime::now_utc();
    let span = Span {
        from: store.now() - DAY,
        until: now,
    };
    let publisher = broker.publisher();
    let refused = reconcile::reconcile(&store, &publisher, &broker, span, DAY).await;
    let text = refused.as_ref().unwrap_err().to_string();
    assert!(text.contains('Z') && !text.contains("+00"), "{text}");
    let Err(ReconcileError::Forgotten { from, remembered }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(from, span.from);
    assert!(remembered >= now - DAY, "{remembered}");
    assert_eq!(broker.log().len(), 0);
    let unbounded = reconcile::reconcile(&store, &publisher, &broker, span, Duration::MAX).await;
    assert_eq!(unbounded.unwrap().published, 3);
}
