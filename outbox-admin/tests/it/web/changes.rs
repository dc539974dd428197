//! Changes from pages: first what one would do, then the change.

use outbox_admin::web::Role;
use outbox_core::testing::MemoryStore;
use outbox_core::{Fitness, MessageStatus};

use super::{SAME_SITE, form_of, get, pages, post};
use crate::plant::{all, dead, failed, noted, relay, settle};

#[tokio::test(start_paused = true)]
async fn retry_is_a_preview_until_its_form_is_sent() {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
    let (first, second) = (noted(&store, "a"), noted(&store, "b"));
    settle(&store, &leases, first, dead(true)).await;
    settle(&store, &leases, second, dead(true)).await;
    let before = all(&store).await;
    let operators = pages(&store, Role::Operator);
    let page = get(&operators, &format!("/change?change=retry&id={first}"))
        .await
        .expect(200);
    assert!(
        page.body.contains("It would retry 1 message of 1 aggregate."),
        "{}",
        page.body
    );
    assert!(page.body.contains("maximum payload exceeded"), "{}", page.body);
    assert_eq!(all(&store).await, before);
    let done = post(&operators, "/change", &form_of(&page.body), &[SAME_SITE])
        .await
        .expect(200);
    assert!(
        done.body.contains("1 dead letter is pending again."),
        "{}",
        done.body
    );
    let statuses: Vec<MessageStatus> = all(&store).await.iter().map(|message| message.status).collect();
    assert_eq!(statuses, [MessageStatus::Pending, MessageStatus::Dead]);
}

#[tokio::test(start_paused = true)]
async fn skip_lets_an_aggregate_go_on() {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
    let id = noted(&store, "a");
    settle(&store, &leases, id, dead(true)).await;
    let operators = pages(&store, Role::Operator);
    let page = get(&operators, "/change?change=skip&aggregate=probe/a")
        .await
        .expect(200);
    let done = post(&operators, "/change.json", &form_of(&page.body), &[SAME_SITE])
        .await
        .expect(200);
    assert_eq!(done.json(), serde_json::json!({ "change": "skip", "changed": 1 }));
    let after = all(&store).await;
    assert!(
        after[0].status == MessageStatus::Dead && !after[0].halts,
        "{after:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn resume_ends_a_back_off() {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
    let id = noted(&store, "a");
    settle(&store, &leases, id, failed()).await;
    let operators = pages(&store, Role::Operator);
    let page = get(&operators, "/aggregate?of=probe/a").await.expect(200);
    assert!(page.body.contains("What would resume do?"), "{}", page.body);
    let page = get(&operators, "/change?change=resume&aggregate=probe/a")
        .await
        .expect(200);
    let form = form_of(&page.body);
    let done = post(&operators, "/change", &form, &[SAME_SITE]).await.expect(200);
    assert!(done.body.contains("Its back-off has ended."), "{}", done.body);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_everything_has_to_be_asked_for() {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
    let id = noted(&store, "a");
    settle(&store, &leases, id, dead(true)).await;
    let operators = pages(&store, Role::Operator);
    for query in [
        "change=retry",
        "change=retry&status=dead",
        "change=skip&id=",
        "change=drop&all=yes",
    ] {
        get(&operators, &format!("/change?{query}")).await.expect(400);
    }
    let page = get(&operators, "/change?change=retry&all=yes").await.expect(200);
    // A browser cannot narrow what was previewed into something else, nor widen it by leaving a field out.
    let form = form_of(&page.body).replace("all=yes", "all=");
    post(&operators, "/change", &form, &[SAME_SITE]).await.expect(400);
    assert_eq!(all(&store).await[0].status, MessageStatus::Dead);
}
