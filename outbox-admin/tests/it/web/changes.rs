//! Changes from pages: first what one would do, then the change.

use outbox_admin::web::Role;
use outbox_core::{Fitness, MessageStatus};
use outbox_testing::MemoryStore;

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
    let form = format!("{}&reason=INC-1", form_of(&page.body));
    let done = post(&operators, "/change", &form, &[SAME_SITE]).await.expect(303);
    let operation = done.headers["location"].to_str().expect("an address").to_owned();
    let page = get(&operators, &operation).await.expect(200).body;
    for text in ["<dt>Changed</dt><dd>1</dd>", "ada", "INC-1", "1 to be published"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let audit = get(&pages(&store, Role::Viewer), "/audit?actor=ada&kind=retry")
        .await
        .expect(200);
    assert!(audit.body.contains(&operation), "{}", audit.body);
    let other = get(&operators, "/audit?actor=bob").await.expect(200);
    assert!(other.body.contains("No operation matches."), "{}", other.body);
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
    let done = done.json();
    assert_eq!((&done["change"], &done["changed"]), (&"skip".into(), &1.into()));
    let path = format!(
        "/operations/{}.json",
        done["operation"].as_str().expect("an operation")
    );
    let operation = get(&operators, &path).await.expect(200).json();
    assert_eq!(
        (&operation["kind"], &operation["dead"]),
        (&"skip".into(), &1.into())
    );
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
    assert!(page.body.contains("Preview resume"), "{}", page.body);
    let page = get(&operators, "/change?change=resume&aggregate=probe/a")
        .await
        .expect(200);
    let form = form_of(&page.body);
    let done = post(&operators, "/change", &form, &[SAME_SITE]).await.expect(303);
    let operation = done.headers["location"].to_str().expect("an address");
    let page = get(&operators, operation).await.expect(200).body;
    assert!(page.contains("resume: it has ended."), "{page}");
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
