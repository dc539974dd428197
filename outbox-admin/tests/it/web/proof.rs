//! The proof: drawn up on demand, one at a time, and looked at without drawing one up.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::{Extension, Router};
use outbox_admin::web::{Access, Dashboard, ProofSpan, Role, StreamView};
use outbox_admin::{ConsumerFloor, DISK_MAX, Proof, ProofRequest, ProofStage, prove};
use outbox_core::{Events, Relay};
use outbox_testing::conformance::probe::Probe;
use outbox_testing::{MemoryBroker, MemoryStore, eventually};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{Answer, SAME_SITE, form_of, get, post};
use crate::plant::noted;

/// A stream in memory, whose proofs wait until the test lets them go on.
#[derive(Clone)]
struct Gated {
    store: MemoryStore,
    broker: MemoryBroker,
    gate: Arc<Semaphore>,
    /// Bytes that temporary files may take.
    disk: u64,
}

#[async_trait]
impl StreamView for Gated {
    async fn prove(
        &self,
        _: ProofSpan,
        progress: &(dyn Fn(ProofStage, u64) + Send + Sync),
    ) -> Result<Proof, String> {
        progress(ProofStage::Stream, 4_711);
        self.gate.acquire().await.expect("it stays open").forget();
        // The clock in memory stands at another time than that of this machine.
        let midnight = time::macros::datetime!(2026-01-01 00:00 UTC);
        let day = time::Duration::days(2);
        let request = ProofRequest::new(midnight - day, midnight + day);
        let request = request.memory(1024 * 1024).disk(self.disk);
        let floors = async || {
            Ok(vec![ConsumerFloor {
                consumer: "billing".to_owned(),
                floor: 0,
            }])
        };
        let proof = prove(&self.store, &self.broker, &[], floors, &request, &mut |_, _| {}).await;
        proof.map_err(|error| error.to_string())
    }
}

/// An outbox with two published events, and its stream.
async fn published() -> Gated {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    noted(&store, "a");
    noted(&store, "b");
    let relay = Relay::new(store.clone(), broker.publisher());
    relay.drain().await.expect("all is published");
    Gated {
        store,
        broker,
        gate: Arc::new(Semaphore::new(0)),
        disk: DISK_MAX,
    }
}

fn pages(stream: &Gated, role: Role) -> Router {
    let dashboard = Dashboard::new("orders", stream.store.clone()).with_stream(stream.clone());
    dashboard.router().layer(Extension(Access::new("ada", role)))
}

async fn json(pages: &Router) -> Value {
    get(pages, "/proof.json").await.expect(200).json()
}

/// Sends the form of the page.
async fn begin(pages: &Router) -> Answer {
    let page = get(pages, "/proof").await.expect(200);
    let form = format!("{}&since=24h&until=1m", form_of(&page.body));
    post(pages, "/proof", &form, &[SAME_SITE]).await
}

async fn ended(pages: &Router) -> Value {
    let mut found = Value::Null;
    eventually("the end of the proof", async || {
        found = json(pages).await;
        found["running"].is_null() && !found["last"].is_null()
    })
    .await;
    found["last"].take()
}

#[tokio::test(start_paused = true)]
async fn a_proof_is_drawn_up_when_its_form_is_sent_and_then_shown() {
    let stream = published().await;
    let operators = pages(&stream, Role::Operator);
    assert_eq!(
        json(&operators).await,
        serde_json::json!({ "running": null, "last": null })
    );
    let answer = begin(&operators).await.expect(303);
    assert_eq!(answer.headers["location"], "/proof");
    eventually("what is done", async || {
        json(&operators).await["running"]["read"] == 4_711
    })
    .await;
    let page = get(&operators, "/proof").await.expect(200).body;
    for text in [
        "reading the stream, 4711 read",
        "End it",
        "data-running",
        "/assets/live.js",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    stream.gate.add_permits(1);
    let last = ended(&operators).await;
    assert_eq!(
        (&last["by"], &last["error"], &last["proof"]["outbox"]["committed"]),
        (&"ada".into(), &Value::Null, &2.into())
    );
    let page = get(&pages(&stream, Role::Viewer), "/proof")
        .await
        .expect(200)
        .body;
    assert!(
        page.contains("Your role (viewer)") && !page.contains("<form"),
        "{page}"
    );
    let page = get(&operators, "/proof").await.expect(200).body;
    for text in [
        "CANNOT TELL",
        "Committed",
        "On the stream",
        "Lost",
        "Ghosts",
        "Out of order",
        "Without effect",
        "Copies",
        "billing",
        "/proof.json",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!page.contains("data-running"), "it has ended: {page}");
}

#[tokio::test(start_paused = true)]
async fn one_proof_runs_at_a_time_and_whoever_may_begin_one_may_end_it() {
    let stream = published().await;
    let operators = pages(&stream, Role::Operator);
    let page = get(&operators, "/proof").await.expect(200);
    let form = format!("{}&since=24h", form_of(&page.body));
    let asked = (0..20).map(|_| post(&operators, "/proof", &form, &[SAME_SITE]));
    let answers = futures_util::future::join_all(asked).await;
    let begun = answers.iter().filter(|answer| answer.status == 303).count();
    assert_eq!(begun, 1);
    let refused = answers.iter().filter(|answer| answer.status != 303);
    for answer in refused {
        assert_eq!(answer.status, 409);
        assert!(
            answer.body.contains("a proof is drawn up already, for ada"),
            "{}",
            answer.body
        );
    }
    let page = get(&operators, "/proof").await.expect(200);
    let end = form_of(&page.body);
    assert!(end.contains("end=yes"), "{end}");
    post(&operators, "/proof", &end, &[SAME_SITE]).await.expect(303);
    let last = ended(&operators).await;
    assert_eq!(last["error"], "it was ended before it was complete");
    assert!(last["proof"].is_null());
    // The next one runs.
    begin(&operators).await.expect(303);
    stream.gate.add_permits(1);
    assert!(ended_after(&operators, &last).await["error"].is_null());
}

/// The end of a proof that is not this one.
async fn ended_after(pages: &Router, before: &Value) -> Value {
    let mut last = Value::Null;
    eventually("the end of the next proof", async || {
        last = json(pages).await["last"].take();
        last["began_at"] != before["began_at"] || last["error"] != before["error"]
    })
    .await;
    last
}

#[tokio::test(start_paused = true)]
async fn a_proof_has_ten_minutes() {
    let stream = published().await;
    let operators = pages(&stream, Role::Operator);
    begin(&operators).await.expect(303);
    tokio::task::yield_now().await;
    tokio::time::advance(Duration::from_secs(601)).await;
    let last = ended(&operators).await;
    let error = last["error"].as_str().expect("an error");
    assert!(
        error.contains("within 10 minutes") && error.contains("`outbox prove`"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_proof_that_needs_more_room_than_its_bound_says_what_to_do() {
    let mut stream = published().await;
    let mut events = Events::new();
    for number in 0..7_000 {
        events = events.with(Probe::noted("a", number));
    }
    stream.store.record(events).expect("it is recorded");
    stream.disk = 100_000;
    stream.gate.add_permits(2);
    let operators = pages(&stream, Role::Operator);
    begin(&operators).await.expect(303);
    let last = ended(&operators).await;
    let error = last["error"].as_str().expect("an error");
    for words in [
        "more than 100000 bytes",
        "choose a shorter span",
        "run `outbox prove`",
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
    let page = get(&operators, "/proof").await.expect(200).body;
    assert!(
        page.contains("more than 100000 bytes") && page.contains("<form"),
        "{page}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_span_that_is_empty_long_or_in_the_future_is_refused_before_anything_is_read() {
    let stream = published().await;
    let operators = pages(&stream, Role::Operator);
    let token = form_of(&get(&operators, "/proof").await.expect(200).body);
    for (span, why) in [
        ("since=1h&until=2h", "the span is empty"),
        ("since=32d", "longer than 31 days"),
        ("since=1h&until=2999-01-01", "in the future"),
        ("since=yesterday", "this is no time"),
        ("since=1h&until=%00", "this is no time"),
    ] {
        let form = format!("{token}&{span}");
        let refused = post(&operators, "/proof.json", &form, &[SAME_SITE])
            .await
            .expect(400);
        let error = refused.json()["error"].as_str().expect("an error").to_owned();
        assert!(error.contains(why), "{span}: {error}");
    }
    assert!(json(&operators).await["running"].is_null());
}

#[tokio::test(start_paused = true)]
async fn nobody_begins_a_proof_by_looking_or_without_the_form() {
    let stream = published().await;
    let operators = pages(&stream, Role::Operator);
    let token = form_of(
        &get(&operators, "/proof?since=24h&until=1m")
            .await
            .expect(200)
            .body,
    );
    let viewers = pages(&stream, Role::Viewer);
    post(&viewers, "/proof", &token, &[SAME_SITE]).await.expect(403);
    post(&operators, "/proof", "since=24h", &[SAME_SITE])
        .await
        .expect(403);
    let cross = ("sec-fetch-site", "cross-site");
    post(&operators, "/proof", &token, &[cross]).await.expect(403);
    let found = json(&operators).await;
    assert_eq!(found, serde_json::json!({ "running": null, "last": null }));
}

#[tokio::test(start_paused = true)]
async fn a_dashboard_that_cannot_read_its_stream_names_the_command_that_does() {
    let store = MemoryStore::new();
    let operators = super::pages(&store, Role::Operator);
    begin(&operators).await.expect(303);
    let last = ended(&operators).await;
    let error = last["error"].as_str().expect("an error");
    assert!(error.contains("`outbox prove` does it"), "{error}");
    let page = get(&operators, "/proof").await.expect(200).body;
    assert!(page.contains("There is no proof of"), "{page}");
}
