//! What pages show, as HTML and as JSON.

use axum::body::Body;
use axum::http::Request;
use axum::{Extension, Router};
use outbox_admin::web::{Access, Dashboard};
use outbox_core::{Fitness, OutboxStore as _, OwnerId, SensitiveFields};
use outbox_testing::MemoryStore;
use outbox_testing::conformance::probe::Probe;

use super::{get, pages, send};
use crate::plant::{LONG, dead, noted, record, relay, settle};

#[tokio::test(start_paused = true)]
async fn the_overview_says_first_what_is_worst() {
    let store = MemoryStore::new();
    noted(&store, "a");
    let viewers = pages(&store);
    let page = get(&viewers, "/").await.expect(200);
    let sentence = "No relay is alive, and 1 message is not published.";
    assert!(page.body.contains(sentence), "{}", page.body);
    let json = get(&viewers, "/overview.json").await.expect(200).json();
    assert_eq!(json["status"]["state"], "stuck");
    assert_eq!(json["status"]["backlog"]["pending"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_stuck_aggregate_is_found_with_its_reason_from_the_overview_on() {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
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
    let retry = format!("<code>outbox retry {id}</code>");
    assert!(aggregate.contains(&retry), "{aggregate}");
    let message = get(&viewers, &format!("/messages/{behind}.json"))
        .await
        .expect(200)
        .json();
    assert_eq!(message["why"]["findings"][0]["cause"], "behind-dead-letter");
}

#[tokio::test(start_paused = true)]
async fn a_list_is_narrowed_by_its_address_and_goes_on_at_another_one() {
    let store = MemoryStore::new();
    for number in 0..101 {
        noted(&store, if number == 0 { "first" } else { "other" });
    }
    let viewers = pages(&store);
    let first = get(&viewers, "/messages.json").await.expect(200).json();
    assert_eq!(first["messages"].as_array().map(Vec::len), Some(100));
    let next = first["next"]
        .as_str()
        .expect("a next page")
        .replace("/messages?", "/messages.json?");
    let second = get(&viewers, &next).await.expect(200).json();
    assert_eq!(second["messages"].as_array().map(Vec::len), Some(1));
    assert!(second["next"].is_null());
    let one = get(&viewers, "/messages.json?aggregate=probe/first&status=pending").await;
    assert_eq!(
        one.expect(200).json()["messages"].as_array().map(Vec::len),
        Some(1)
    );
    for query in ["status=lost", "aggregate=/", "before=x"] {
        get(&viewers, &format!("/messages?{query}")).await.expect(400);
    }
}

#[tokio::test(start_paused = true)]
async fn texts_of_others_are_shown_and_never_run() {
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
async fn a_payload_is_shown_to_those_who_may_see_it_without_its_sensitive_fields() {
    let store = MemoryStore::new();
    let id = record(&store, [Probe::noted("a", 471147114)]);
    let shown = |fields: SensitiveFields, access: Access| {
        let dashboard = Dashboard::new("orders", store.clone()).with_shown(fields);
        dashboard.router().layer(Extension(access))
    };
    let path = format!("/messages/{id}.json");
    let stored = get(&pages(&store), &path).await.expect(200).json();
    let (kind, version) = (
        stored["message"]["event_type"]
            .as_str()
            .expect("a type")
            .to_owned(),
        stored["message"]["content"]["event_version"]
            .as_u64()
            .expect("a version"),
    );
    let version = u32::try_from(version).expect("a version");
    let fields = SensitiveFields::default().with_event(&kind, version, &[]);
    let page = shown(fields, Access::new("ada"));
    let json = get(&page, &path).await.expect(200).json();
    assert!(json["message"]["content"]["payload"].is_null(), "{json}");
    let text = get(&page, &format!("/messages/{id}")).await.expect(200).body;
    assert!(
        text.contains("Payloads are not shown to you") && !text.contains("471147114"),
        "{text}"
    );
    let admin = Access::new("ada").with_payloads(true);
    let open = SensitiveFields::default().with_event(&kind, version, &[]);
    let json = get(&shown(open, admin.clone()), &path).await.expect(200).json();
    let payload = json["message"]["content"]["payload"]
        .as_str()
        .expect("a payload")
        .to_owned();
    assert!(payload.contains("471147114"), "{payload}");
    let field = payload.split('"').nth(1).expect("a field").to_owned();
    let names: Vec<String> = payload.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let masked = SensitiveFields::default().with_event(&kind, version, &names);
    let json = get(&shown(masked, admin), &path).await.expect(200).json();
    let payload = json["message"]["content"]["payload"].as_str().expect("a payload");
    assert!(
        payload.contains(&field) && !payload.contains("471147114"),
        "{payload}"
    );
}

#[tokio::test(start_paused = true)]
async fn each_page_is_json_for_a_program_that_asks_for_it() {
    let store = MemoryStore::new();
    relay(&store, Fitness::Fit).await;
    let id = noted(&store, "a");
    let viewers = pages(&store);
    for path in [
        "/".to_owned(),
        "/messages".to_owned(),
        format!("/messages/{id}"),
        "/aggregate?of=probe/a".to_owned(),
        "/dead-letters".to_owned(),
        "/dead-letters?fingerprint=0".to_owned(),
        "/dead-letters/019ab000-0000-7000-8000-000000000001".to_owned(),
        "/nothing".to_owned(),
    ] {
        let request = Request::get(&path).header("accept", "application/json");
        let answer = send(&viewers, request.body(Body::empty()).expect("a request")).await;
        assert!(answer.json().is_object(), "{path}");
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
async fn a_relay_that_has_died_is_shown_with_the_partitions_that_it_left() {
    let store = MemoryStore::new();
    let owner = OwnerId::fresh();
    store
        .announce(owner, LONG, &Fitness::Fit.into())
        .await
        .expect("announced");
    store.acquire(owner, LONG, 3).await.expect("acquired");
    tokio::time::advance(LONG).await;
    let viewers = pages(&store);
    let page = get(&viewers, "/").await.expect(200).body;
    for expected in ["No relay is alive", "dead</span></td><td>3</td>"] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    let json = get(&viewers, "/overview.json").await.expect(200).json();
    let relay = &json["relays"][0];
    assert_eq!(relay["owner"], owner.to_string());
    assert_eq!(
        (&relay["is_alive"], relay["fitness"].is_null()),
        (&false.into(), true)
    );
}

#[tokio::test(start_paused = true)]
async fn a_program_that_mounts_the_commands_is_named_on_each_page() {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
    let id = noted(&store, "a");
    settle(&store, &leases, id, dead(true)).await;
    tokio::time::advance(LONG * 3).await;
    let dashboard = Dashboard::new("orders", store.clone()).with_program("shop outbox");
    let viewers = dashboard.router().layer(Extension(Access::new("ada")));
    let (retry, message) = (format!("shop outbox retry {id}"), format!("/messages/{id}"));
    for (path, named) in [
        ("/", ">shop outbox relay list</code>"),
        ("/aggregate?of=probe/a", retry.as_str()),
        (message.as_str(), retry.as_str()),
    ] {
        let page = get(&viewers, path).await.expect(200).body;
        assert!(page.contains(named), "{path}: {page}");
        assert!(!page.contains(">outbox "), "{path}: {page}");
    }
    let json = get(&viewers, &format!("{message}.json")).await.expect(200).json();
    let retry = format!("outbox retry {id}");
    assert_eq!(json["why"]["findings"][0]["next"][0], retry.as_str(), "{json}");
}

#[tokio::test(start_paused = true)]
async fn links_lead_to_where_the_router_is_mounted() {
    let store = MemoryStore::new();
    noted(&store, "a");
    let nested = Router::new().nest("/ops/outbox", pages(&store));
    for path in ["/ops/outbox", "/ops/outbox/messages"] {
        let page = get(&nested, path).await.expect(200).body;
        assert!(page.contains("href=\"/ops/outbox/assets/style.css\""), "{page}");
        assert!(page.contains("href=\"/ops/outbox/messages\""), "{page}");
        assert!(page.contains("href=\"/ops/outbox\""), "{page}");
    }
}
