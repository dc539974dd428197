//! Live values: read once, however many pages are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use axum::{Extension, Router};
use http_body_util::BodyExt as _;
use outbox_admin::BrokerCheck;
use outbox_admin::web::{Access, Dashboard, Role, StreamView};
use outbox_testing::MemoryStore;
use tower::ServiceExt as _;

use super::get;
use crate::plant::noted;

/// Counts how often the stream is looked at.
struct Counted(Arc<AtomicU32>);

#[async_trait]
impl StreamView for Counted {
    async fn broker(&self) -> BrokerCheck {
        self.0.fetch_add(1, Ordering::Relaxed);
        BrokerCheck::Checked(Vec::new())
    }
}

fn counted(store: &MemoryStore) -> (Router, Arc<AtomicU32>) {
    let looks = Arc::new(AtomicU32::new(0));
    let dashboard = Dashboard::new("orders", store.clone()).with_stream(Counted(looks.clone()));
    let router = dashboard
        .router()
        .layer(Extension(Access::new("ada", Role::Viewer)));
    (router, looks)
}

#[tokio::test(start_paused = true)]
async fn a_thousand_open_pages_look_at_the_stream_once() {
    let store = MemoryStore::new();
    let (router, looks) = counted(&store);
    let pages = (0..1_000).map(|_| get(&router, "/"));
    for page in futures_util::future::join_all(pages).await {
        page.expect(200);
    }
    assert_eq!(looks.load(Ordering::Relaxed), 1);
    tokio::time::advance(Duration::from_secs(60)).await;
    get(&router, "/").await.expect(200);
    assert_eq!(looks.load(Ordering::Relaxed), 2);
}

/// Reads of the database for one sample: the backlog, the relays, the partitions, the pauses.
const READS: u64 = 5;

#[tokio::test(start_paused = true)]
async fn a_thousand_live_pages_cost_the_database_what_one_does() {
    let store = MemoryStore::new();
    let (router, _) = counted(&store);
    let open = || async {
        let request = Request::get("/live").body(Body::empty()).expect("a request");
        router
            .clone()
            .oneshot(request)
            .await
            .expect("it answers")
            .into_body()
    };
    let mut pages = futures_util::future::join_all((0..1_000).map(|_| open())).await;
    let before = store.calls();
    for samples in 1..=5 {
        for page in &mut pages {
            let frame = page.frame().await.expect("it goes on").expect("a frame");
            assert!(frame.into_data().expect("data").starts_with(b"event: sample"));
        }
        let reads = store.calls() - before;
        // Those who ask a little later may have the next sample.
        assert!(
            reads <= (samples + 1) * READS,
            "{reads} reads for {samples} samples"
        );
    }
    let before = store.calls();
    get(&router, "/").await.expect(200);
    assert!(store.calls() - before <= READS);
}

#[tokio::test(start_paused = true)]
async fn an_open_page_is_told_what_has_changed() {
    let store = MemoryStore::new();
    let (router, _) = counted(&store);
    let request = Request::get("/live").body(Body::empty()).expect("a request");
    let response = router.oneshot(request).await.expect("it answers");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut events = response.into_body();
    let mut told = String::new();
    for wanted in ["\"pending\":\"0\"", "\"pending\":\"1\""] {
        while !told.contains(wanted) {
            let frame = events.frame().await.expect("it goes on").expect("a frame");
            let data = frame.into_data().expect("data");
            told.push_str(&String::from_utf8_lossy(&data));
        }
        noted(&store, "a");
    }
    assert!(told.starts_with("event: sample\n"), "{told}");
}
