//! The preview page of a retry says which consumers are handed the messages, over a stream that a test describes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use axum::{Extension, Router};
use outbox_admin::web::{Access, Dashboard, InboxView, Role, StreamView, Takers};
use outbox_core::{EventId, Fitness, Message};
use outbox_testing::MemoryStore;
use serde_json::json;

use super::{SAME_SITE, form_of, get, pages, post};
use crate::plant::{aggregate, all, dead, noted, relay, settle};

/// What keeps from the consumers, or from their inboxes.
#[derive(Clone, Copy)]
enum Trouble {
    None,
    Away,
    Silent,
    InboxAway,
    InboxSilent,
    InboxUnseen,
}

/// A stream with the consumers `billing`, which takes what is of aggregate `a`, and `search`, which takes nothing of it.
struct Consumers {
    trouble: Trouble,
    /// How often they were asked for.
    asked: Arc<AtomicU32>,
}

fn takers_of(message: &Message) -> Vec<String> {
    let is_taken = message.aggregate == aggregate("a");
    is_taken.then(|| "billing".to_owned()).into_iter().collect()
}

#[async_trait]
impl StreamView for Consumers {
    async fn takers(&self) -> Result<Takers, String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.trouble {
            Trouble::Away => Err("nats does not answer".to_owned()),
            Trouble::Silent => std::future::pending().await,
            _ => Ok(Takers {
                consumers: vec!["billing".to_owned(), "search".to_owned()],
                of: Box::new(takers_of),
            }),
        }
    }

    async fn inboxes(&self, events: &[EventId]) -> Result<InboxView, String> {
        assert_eq!(events.len(), 2, "the events of both messages are asked for");
        match self.trouble {
            Trouble::InboxAway => Err("no database".to_owned()),
            Trouble::InboxSilent => std::future::pending().await,
            Trouble::InboxUnseen => Ok(InboxView {
                unseen: vec!["inboxes: another database".to_owned()],
                ..InboxView::default()
            }),
            _ => Ok(InboxView::default()),
        }
    }
}

fn over(store: &MemoryStore, trouble: Trouble) -> (Router, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let stream = Consumers {
        trouble,
        asked: asked.clone(),
    };
    let dashboard = Dashboard::new("orders", store.clone()).with_stream(stream);
    let router = dashboard.with_changes(store.clone()).router();
    let router = router.layer(Extension(Access::new("ada", Role::Operator)));
    (router, asked)
}

/// A dead letter of `a` and one of `b`.
async fn with_dead() -> MemoryStore {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
    let letters = [noted(&store, "a"), noted(&store, "b")];
    for letter in letters {
        settle(&store, &leases, letter, dead(true)).await;
    }
    store
}

#[tokio::test(start_paused = true)]
async fn the_preview_page_of_a_retry_says_which_consumers_are_handed_the_messages() {
    let store = with_dead().await;
    let before = all(&store).await;
    let (pages, asked) = over(&store, Trouble::None);
    let page = get(&pages, "/change?change=retry&all=yes").await.expect(200).body;
    for expected in [
        "consumer billing is handed 1 and remembers 0 of the first 2 events: what it is handed takes effect there if it has a handler",
        "these consumers do not take any of the first 2 events: search",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    let preview = get(&pages, "/change.json?change=retry&all=yes").await;
    let preview = preview.expect(200).json();
    assert_eq!(
        preview["consumers"],
        json!([
            { "consumer": "billing", "sampled": 2, "handed": 1, "remembered": 0 },
            { "consumer": "search", "sampled": 2, "handed": 0, "remembered": null },
        ]),
        "{preview}"
    );
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    // A skip hands them to nobody, and the change itself asks nobody.
    let skip = get(&pages, "/change.json?change=skip&all=yes").await;
    assert_eq!(skip.expect(200).json()["consumers"], json!([]));
    assert_eq!(all(&store).await, before);
    post(&pages, "/change", &form_of(&page), &[SAME_SITE])
        .await
        .expect(303);
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_preview_page_whose_consumers_are_not_known_says_so_and_the_change_can_be_made() {
    let store = with_dead().await;
    let unknown = "which consumers would take effect is not known: ";
    for (trouble, why) in [
        (Trouble::Away, "nats does not answer"),
        (Trouble::Silent, "no answer within 5s"),
        (Trouble::InboxAway, "inboxes: no database"),
        (Trouble::InboxSilent, "inboxes: no answer within 5s"),
        (Trouble::InboxUnseen, "inboxes: another database"),
    ] {
        let (pages, _) = over(&store, trouble);
        let page = get(&pages, "/change?change=retry&all=yes").await.expect(200).body;
        let expected = format!("{unknown}{why}");
        assert!(
            page.contains(&expected) && page.contains("<form"),
            "{why}: {page}"
        );
        let preview = get(&pages, "/change.json?change=retry&all=yes").await;
        let preview = preview.expect(200).json();
        let effects = preview["effects"].as_array().expect("sentences");
        assert!(effects.contains(&json!(expected)), "{why}: {preview}");
        let is_of_inbox = why.starts_with("inboxes: ");
        assert_eq!(preview["consumers"][0]["handed"] == 1, is_of_inbox, "{preview}");
        assert!(preview["consumers"][0]["remembered"].is_null(), "{preview}");
    }
    // A dashboard that was told of no stream.
    let page = get(&pages(&store, Role::Operator), "/change?change=retry&all=yes").await;
    let page = page.expect(200).body;
    let expected = format!("{unknown}this dashboard does not know the consumers");
    assert!(page.contains(&expected) && page.contains("<form"), "{page}");
}
