//! Contents of pages.

use outbox::core::{OutboxStore as _, OwnerId, RelayHealth};
use outbox_testing::MemoryStore;

use super::{Answer, get, pages};
use crate::admin::plant::{LONG, dead, noted, relay, settle};

#[tokio::test(start_paused = true)]
async fn overview_starts_with_the_worst_reason() {
    let store = MemoryStore::new();
    noted(&store, "a");
    let viewers = pages(&store);
    let page = get(&viewers, "/").await.expect(200);
    let sentence = "No relay is alive, and 1 message is not published.";
    assert!(page.body.contains(sentence), "{}", page.body);
}

#[tokio::test(start_paused = true)]
async fn overview_links_to_the_stuck_aggregate() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let (id, behind) = (noted(&store, "a/1 &"), noted(&store, "a/1 &"));
    settle(&store, &leases, id, dead(true)).await;
    let viewers = pages(&store);
    let overview = get(&viewers, "/").await.expect(200).body;
    assert!(overview.contains("href=\"/messages?status=dead\""), "{overview}");
    let dead = get(&viewers, "/messages?status=dead").await.expect(200).body;
    let link = "/aggregate?of=probe/a/1%20%26";
    assert!(dead.contains(&format!("href=\"{link}\"")), "{dead}");
    let aggregate = get(&viewers, link).await.expect(200).body;
    for expected in [
        "dead-letter",
        "maximum payload exceeded",
        &id.to_string(),
        &behind.to_string(),
    ] {
        assert!(aggregate.contains(expected), "{expected}: {aggregate}");
    }
    let retry = format!("outbox retry {id}</code>");
    assert!(aggregate.contains(&retry), "{aggregate}");
    let message = get(&viewers, &format!("/messages/{behind}"))
        .await
        .expect(200)
        .body;
    assert!(message.contains("behind-dead-letter"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn list_url_filters_and_links_the_next_page() {
    let store = MemoryStore::new();
    for number in 0..101 {
        noted(&store, if number == 0 { "first" } else { "other" });
    }
    let viewers = pages(&store);
    let rows = |page: &Answer| page.body.matches("href=\"/messages/").count();
    let first = get(&viewers, "/messages").await.expect(200);
    assert_eq!(rows(&first), 100);
    let next = first.next().expect("a next page");
    let second = get(&viewers, &next).await.expect(200);
    assert_eq!((rows(&second), second.next()), (1, None));
    let one = get(&viewers, "/messages?aggregate=probe/first&status=pending").await;
    assert_eq!(rows(&one.expect(200)), 1);
    for query in ["status=lost", "aggregate=/", "before=x"] {
        get(&viewers, &format!("/messages?{query}")).await.expect(400);
    }
}

#[tokio::test(start_paused = true)]
async fn foreign_text_never_runs_as_script() {
    let store = MemoryStore::new();
    let evil = "\"><script>alert(1)</script>";
    noted(&store, evil);
    let viewers = pages(&store);
    let query = "aggregate=%22%3E%3Cscript%3Ealert(1)%3C/script%3E";
    for path in [
        "/messages",
        &format!("/messages?{query}"),
        "/aggregate?of=probe/%22%3E%3Cscript%3Ealert(1)",
    ] {
        let page = get(&viewers, path).await.expect(200).body;
        assert!(!page.contains("<script>alert"), "{page}");
        assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_page_has_a_title_and_landmarks() {
    let store = MemoryStore::new();
    relay(&store, RelayHealth::Healthy).await;
    let id = noted(&store, "a");
    let viewers = pages(&store);
    for path in [
        "/".to_owned(),
        "/messages".to_owned(),
        format!("/messages/{id}"),
        "/aggregate?of=probe/a".to_owned(),
        "/dead-letters".to_owned(),
        "/dead-letters?fingerprint=0".to_owned(),
        "/nothing".to_owned(),
    ] {
        let page = get(&viewers, &path).await.body;
        assert!(page.starts_with("<!DOCTYPE html>"), "{path}: {page}");
        for landmark in [
            "<html lang=\"en\">",
            "<main id=\"content\">",
            "<nav aria-label",
            "<h1>",
        ] {
            assert!(page.contains(landmark), "{path}: {landmark}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn dead_relay_is_shown_with_its_partitions() {
    let store = MemoryStore::new();
    let owner = OwnerId::fresh();
    store
        .announce(owner, LONG, &RelayHealth::Healthy.into())
        .await
        .expect("announced");
    store.acquire(owner, LONG, 3).await.expect("acquired");
    tokio::time::advance(LONG).await;
    let viewers = pages(&store);
    let page = get(&viewers, "/").await.expect(200).body;
    for expected in ["No relay is alive", "dead</span></td><td>3</td>"] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
}
