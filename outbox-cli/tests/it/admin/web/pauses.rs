//! Pauses and the log on the overview.

use std::time::Duration;

use async_trait::async_trait;
use outbox::core::{PauseRequest, RelayHealth};
use outbox_cli::admin::web::StreamView;
use outbox_cli::admin::{Next, Reason, State};
use outbox_testing::MemoryStore;
use outbox_testing::Operator as _;

use super::{get, pages, pages_with};
use crate::admin::plant::relay;

fn request(aggregate_type: Option<&str>, lasts: Option<Duration>) -> PauseRequest {
    PauseRequest {
        aggregate_type: aggregate_type.map(str::to_owned),
        reason: "the warehouse is full".to_owned(),
        by: "bob".to_owned(),
        lasts,
    }
}

#[tokio::test(start_paused = true)]
async fn overview_starts_with_the_publishing_pause() {
    let store = MemoryStore::new();
    relay(&store, RelayHealth::Healthy).await;
    let two_hours = Duration::from_secs(7_200);
    store
        .pause(&request(Some("probe"), Some(two_hours)))
        .await
        .expect("paused");
    let viewers = pages(&store);
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
        "outbox resume --aggregate-type probe</code>",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
}

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
async fn overview_shows_log_problems() {
    let store = MemoryStore::new();
    relay(&store, RelayHealth::Healthy).await;
    let viewers = pages_with(&store, Behind);
    let page = get(&viewers, "/").await.expect(200).body;
    let sentence = "No relay reads the log; 12 messages are not published.";
    assert!(page.contains(sentence), "{page}");
}
