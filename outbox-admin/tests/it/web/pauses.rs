//! Pauses of publishing and the log of a log relay: said first, listed, begun and ended after a preview.

use std::time::Duration;

use async_trait::async_trait;
use axum::Extension;
use outbox_admin::web::{Access, Dashboard, Role, StreamView};
use outbox_admin::{Next, Reason, State};
use outbox_core::{Fitness, OutboxStore as _, PauseRequest};
use outbox_testing::MemoryStore;
use outbox_testing::Operator as _;

use super::{SAME_SITE, form_of, get, pages, post};
use crate::plant::{noted, relay};

fn request(aggregate_type: Option<&str>, lasts: Option<Duration>) -> PauseRequest {
    PauseRequest {
        aggregate_type: aggregate_type.map(str::to_owned),
        reason: "the warehouse is full".to_owned(),
        by: "bob".to_owned(),
        lasts,
    }
}

#[tokio::test(start_paused = true)]
async fn the_overview_says_first_who_has_paused_publishing_since_when_why_and_until_when() {
    let store = MemoryStore::new();
    relay(&store, Fitness::Fit).await;
    let two_hours = Duration::from_secs(7_200);
    store
        .pause(&request(Some("probe"), Some(two_hours)))
        .await
        .expect("paused");
    let viewers = pages(&store, Role::Viewer);
    let page = get(&viewers, "/").await.expect(200).body;
    let paused = page.find("<div class=\"paused\">").expect("the pause is said");
    assert!(
        paused < page.find("class=\"sentence\"").expect("a sentence"),
        "{page}"
    );
    for text in [
        "Publishing of aggregates of type probe is paused",
        "aggregates of type probe",
        "bob",
        "the warehouse is full",
        "<td>2h</td>",
        "href=\"/change?change=unpause&amp;aggregate_type=probe\"",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let json = get(&viewers, "/overview.json").await.expect(200).json();
    assert_eq!(json["status"]["state"], "degraded");
    assert_eq!(json["status"]["pauses"][0]["by"], "bob");
    assert!(!page.contains("<form"), "a viewer has no form: {page}");
    assert_eq!(json["relays"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(start_paused = true)]
async fn an_operator_pauses_and_unpauses_after_a_preview() {
    let store = MemoryStore::new();
    noted(&store, "a");
    let operators = pages(&store, Role::Operator);
    let page = get(&operators, "/").await.expect(200).body;
    assert!(page.contains("Preview pause"), "{page}");
    let preview = get(&operators, "/change?change=pause&aggregate_type=probe&lasts=2h").await;
    let preview = preview.expect(200).body;
    for text in [
        "It would pause publishing of aggregates of type probe.",
        "1 message waits now",
        "it ends by itself after 7200 s",
    ] {
        assert!(preview.contains(text), "{text}: {preview}");
    }
    assert!(
        store.pauses().await.expect("pauses").is_empty(),
        "a preview changes nothing"
    );
    let form = format!("{}&reason=INC-7", form_of(&preview));
    let done = post(&operators, "/change", &form, &[SAME_SITE]).await.expect(303);
    let operation = done.headers["location"].to_str().expect("an address");
    assert!(operation.starts_with("/operations/"), "{operation}");
    let standing = outbox_admin::pauses(&store).await.expect("pauses");
    assert_eq!(
        (
            standing.len(),
            standing[0].by.as_str(),
            standing[0].reason.as_str()
        ),
        (1, "ada", "INC-7")
    );
    assert!(standing[0].ends_in.is_some());
    let preview = get(&operators, "/change?change=unpause&aggregate_type=probe").await;
    let preview = preview.expect(200).body;
    assert!(preview.contains("1 message is published again"), "{preview}");
    let form = form_of(&preview);
    let done = post(&operators, "/change.json", &form, &[SAME_SITE])
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&done["change"], &done["changed"]),
        (&"unpause".into(), &1.into())
    );
    assert!(outbox_admin::pauses(&store).await.expect("pauses").is_empty());
    // Sent again, it says that there is nothing to end.
    let again = post(&operators, "/change", &form, &[SAME_SITE])
        .await
        .expect(200)
        .body;
    assert!(again.contains("Nothing was changed"), "{again}");
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_refused_to_viewers_to_other_sites_and_without_the_form() {
    let store = MemoryStore::new();
    let (viewers, operators) = (pages(&store, Role::Viewer), pages(&store, Role::Operator));
    let page = get(&viewers, "/change?change=pause").await.expect(200).body;
    assert!(
        page.contains("Your role (viewer) may not make changes."),
        "{page}"
    );
    let form = form_of(&get(&operators, "/change?change=pause").await.expect(200).body);
    post(&viewers, "/change", &form, &[SAME_SITE]).await.expect(403);
    post(&operators, "/change", &form, &[("sec-fetch-site", "cross-site")])
        .await
        .expect(403);
    post(&operators, "/change", "change=pause", &[SAME_SITE])
        .await
        .expect(403);
    for wrong in ["lasts=0s", "lasts=soon", "lasts=37000d", "aggregate_type=%00"] {
        get(&operators, &format!("/change?change=pause&{wrong}"))
            .await
            .expect(400);
    }
    let read_only = Dashboard::new("orders", store.clone()).router();
    let read_only = read_only.layer(Extension(Access::new("ada", Role::Operator)));
    let page = get(&read_only, "/change?change=pause").await.expect(200).body;
    assert!(page.contains("This dashboard only reads."), "{page}");
    assert!(store.pauses().await.expect("pauses").is_empty());
}

/// A stream whose log is behind.
struct Behind;

#[async_trait]
impl StreamView for Behind {
    async fn log(&self) -> Result<Option<Reason>, String> {
        Ok(Some(Reason::new(
            State::Stuck,
            "no relay reads the log; 12 messages are not published",
            Next::and_advice("outbox relay list", "start the relay with `log.read = true`"),
        )))
    }
}

#[tokio::test(start_paused = true)]
async fn the_overview_shows_what_is_wrong_with_the_log() {
    let store = MemoryStore::new();
    relay(&store, Fitness::Fit).await;
    let viewers = Dashboard::new("orders", store).with_stream(Behind).router();
    let viewers = viewers.layer(Extension(Access::new("ada", Role::Viewer)));
    let page = get(&viewers, "/").await.expect(200).body;
    let sentence = "No relay reads the log; 12 messages are not published.";
    assert!(page.contains(sentence), "{page}");
    let json = get(&viewers, "/overview.json").await.expect(200).json();
    assert_eq!(json["status"]["state"], "stuck");
}
