//! Sampling: one database read serves all open pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use outbox_cli::admin::BrokerCheck;
use outbox_cli::admin::web::StreamView;
use outbox_testing::MemoryStore;

use super::{get, pages_with};

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
    (pages_with(store, Counted(looks.clone())), looks)
}

#[tokio::test(start_paused = true)]
async fn stream_reads_are_independent_of_open_pages() {
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

const READS: u64 = 8;

#[tokio::test(start_paused = true)]
async fn database_load_is_independent_of_open_pages() {
    let store = MemoryStore::new();
    let (router, _) = counted(&store);
    for _ in 0..3 {
        let before = store.calls();
        let pages = (0..1_000).map(|_| get(&router, "/"));
        for page in futures_util::future::join_all(pages).await {
            page.expect(200);
        }
        let reads = store.calls() - before;
        assert!(reads <= READS, "{reads} reads");
        tokio::time::advance(Duration::from_secs(3)).await;
    }
}
