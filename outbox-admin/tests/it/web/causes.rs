//! Previews on pages say whether the cause of a failure still holds, over a stream that a test describes.

use async_trait::async_trait;
use axum::{Extension, Router};
use outbox_admin::web::{Access, Dashboard, Refuses, Role, StreamView};
use outbox_admin::{Obstacle, Refused};
use outbox_core::{Fitness, MessageId};
use outbox_testing::MemoryStore;

use super::{SAME_SITE, form_of, get, post};
use crate::plant::{aggregate, dead, failed, noted, relay, settle};

/// What the stream answers when it is asked what it would refuse.
#[derive(Clone, Copy)]
enum Broker {
    /// It refuses what is of aggregate `a`.
    Full,
    Away,
    Silent,
}

#[async_trait]
impl StreamView for Broker {
    async fn refuses(&self) -> Result<Refuses, String> {
        match self {
            Self::Full => Ok(Box::new(|message| {
                (message.aggregate == aggregate("a")).then(|| Refused {
                    obstacle: Obstacle::Full,
                    what: "stream `S` is <full>".to_owned(),
                    next: "nats stream edit S --max-bytes=2000".into(),
                })
            })),
            Self::Away => Err("nats does not answer".to_owned()),
            Self::Silent => std::future::pending().await,
        }
    }
}

fn over(store: &MemoryStore, stream: Broker) -> Router {
    let dashboard = Dashboard::new("orders", store.clone()).with_stream(stream);
    let dashboard = dashboard.with_changes(store.clone());
    dashboard
        .router()
        .layer(Extension(Access::new("ada", Role::Operator)))
}

/// A dead letter of `a` and one of `b`, and a relay that could take them.
async fn with_dead() -> (MemoryStore, [MessageId; 2]) {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
    let letters = [noted(&store, "a"), noted(&store, "b")];
    for letter in letters {
        settle(&store, &leases, letter, dead(false)).await;
    }
    (store, letters)
}

#[tokio::test(start_paused = true)]
async fn the_preview_page_of_a_retry_says_whether_its_cause_still_holds() {
    let (store, _) = with_dead().await;
    let pages = over(&store, Broker::Full);
    let page = get(&pages, "/change?change=retry&all=yes").await.expect(200).body;
    for expected in [
        "Does the cause still hold?",
        "<span class=\"state stuck\">still</span> 1 message: stream `S` is &lt;full&gt;",
        "nats stream edit S --max-bytes=2000",
        "<span class=\"state idle\">unknown</span> 1 message: it shows only when it is tried",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    let json = get(&pages, "/change.json?change=retry&all=yes").await.expect(200);
    let json = json.json();
    assert_eq!(
        (
            &json["messages"],
            &json["causes"][0]["holds"],
            &json["causes"][0]["obstacle"]
        ),
        (&2.into(), &"still".into(), &"full".into()),
        "{json}"
    );
    assert_eq!(json["causes"].as_array().map(Vec::len), Some(2), "{json}");
    // A skip has nothing tried again, whatever the cause is.
    let skip = get(&pages, "/change.json?change=skip&all=yes")
        .await
        .expect(200)
        .json();
    assert_eq!(skip["causes"], serde_json::json!([]));
    // It is no reason to keep anybody from it.
    let page = get(&pages, "/change?change=retry&all=yes").await.expect(200).body;
    post(&pages, "/change", &form_of(&page), &[SAME_SITE])
        .await
        .expect(303);
}

#[tokio::test(start_paused = true)]
async fn the_preview_page_of_a_resume_says_whether_its_cause_still_holds() {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
    let id = noted(&store, "a");
    settle(&store, &leases, id, failed()).await;
    let path = "/change?change=resume&aggregate=probe/a";
    let page = get(&over(&store, Broker::Full), path).await.expect(200).body;
    assert!(page.contains("still</span> 1 message: stream"), "{page}");
    let json = get(&over(&store, Broker::Full), &path.replace('?', ".json?")).await;
    let json = json.expect(200).json();
    assert_eq!(json["causes"][0]["obstacle"], "full", "{json}");
}

#[tokio::test(start_paused = true)]
async fn a_preview_does_not_wait_for_a_stream_that_is_away() {
    let (store, [letter, _]) = with_dead().await;
    for (broker, why) in [
        (
            Broker::Away,
            "the stream could not be asked: nats does not answer",
        ),
        (
            Broker::Silent,
            "the stream could not be asked: no answer within 5s",
        ),
    ] {
        let pages = over(&store, broker);
        let page = get(&pages, &format!("/change?change=retry&id={letter}")).await;
        let page = page.expect(200).body;
        assert!(page.contains(why) && page.contains("<form"), "{why}: {page}");
        assert!(page.contains("outbox doctor</code>"), "{page}");
    }
}
