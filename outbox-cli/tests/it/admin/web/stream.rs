//! Pages about a simulated stream.

use async_trait::async_trait;
use axum::Router;
use outbox::core::{EventId, Message, RelayHealth};
use outbox_cli::admin::doctor::StreamFacts;
use outbox_cli::admin::web::{InboxView, StreamView};
use outbox_testing::MemoryStore;

use super::{Answer, get, pages_with};
use crate::admin::plant::{noted, published, relay, settle};

#[derive(Clone, Default)]
struct Described {
    messages: u64,
}

#[async_trait]
impl StreamView for Described {
    async fn locate(&self, _: &Message) -> Result<Option<u64>, String> {
        Ok(Some(7))
    }

    async fn filled(&self) -> Result<Option<StreamFacts>, String> {
        Ok(Some(StreamFacts {
            messages: self.messages,
            bytes: self.messages * 10,
            max_bytes: Some(100_000),
            ..StreamFacts::default()
        }))
    }

    async fn inboxes(&self, events: &[EventId]) -> Result<InboxView, String> {
        assert_eq!(events.len(), 1, "one event was asked for");
        Ok(InboxView {
            floors: vec![("billing".to_owned(), 7), ("search".to_owned(), 6)],
            unseen: vec!["inboxes: another database".to_owned()],
            ..InboxView::default()
        })
    }
}

fn described(store: &MemoryStore, stream: &Described) -> Router {
    pages_with(store, stream.clone())
}

#[tokio::test(start_paused = true)]
async fn timeline_has_recording_stream_and_consumers() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let id = noted(&store, "a");
    settle(&store, &leases, id, published(true)).await;
    let pages = described(&store, &Described::default());
    let page = get(&pages, "/aggregate?of=probe/a").await.expect(200).body;
    for expected in [
        "<td>7</td>",
        "billing: passed; search: open",
        "Not checked: inboxes: another database",
        &id.to_string(),
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    for from in [format!("/messages/{id}"), "/messages".to_owned()] {
        let page = get(&pages, &from).await.expect(200).body;
        assert!(page.contains("href=\"/aggregate?of=probe/a\""), "{from}: {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn overview_reports_a_full_stream_first() {
    let store = MemoryStore::new();
    relay(&store, RelayHealth::Healthy).await;
    noted(&store, "a");
    let stream = Described { messages: 10_000 };
    let page = get(&described(&store, &stream), "/").await.expect(200).body;
    let full = "the stream is full (100000 of 100000 bytes): it rejects new messages, and 1 message is not published";
    assert!(page.contains(full), "{page}");
}

#[tokio::test(start_paused = true)]
async fn timeline_links_the_next_page() {
    let store = MemoryStore::new();
    for _ in 0..26 {
        noted(&store, "a");
    }
    let pages = described(&store, &Described::default());
    let events = |page: &Answer| page.body.matches("<tr>").count() - 1;
    let first = get(&pages, "/aggregate?of=probe/a").await.expect(200);
    assert_eq!(events(&first), 25);
    let next = first.next().expect("a next page");
    let second = get(&pages, &next).await.expect(200);
    assert_eq!((events(&second), second.next()), (1, None));
}

#[tokio::test(start_paused = true)]
async fn a_name_with_nul_is_refused_with_a_text() {
    let pages = super::pages(&MemoryStore::new());
    for path in ["/aggregate?of=probe/a%00", "/messages?aggregate=probe/%00"] {
        let refused = get(&pages, path).await.expect(400).body;
        assert!(refused.contains("NUL"), "{path}: {refused}");
    }
}
