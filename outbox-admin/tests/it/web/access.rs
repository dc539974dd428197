//! Who gets in, and what every answer has.

use axum::body::Body;
use axum::http::Request;
use axum::{Extension, Router};
use outbox_admin::web::{Access, Dashboard, Role};
use outbox_core::Fitness;
use outbox_testing::MemoryStore;

use super::{SAME_SITE, form_of, get, pages, post, send};
use crate::plant::{all, dead, noted, relay, settle};

const PATHS: [&str; 10] = [
    "/",
    "/overview.json",
    "/messages",
    "/messages/019ab000-0000-7000-8000-000000000001",
    "/aggregate?of=probe/a",
    "/dead-letters",
    "/audit",
    "/operations/019ab000-0000-7000-8000-000000000001",
    "/assets/style.css",
    "/nothing",
];

#[tokio::test(start_paused = true)]
async fn without_an_access_every_page_is_refused() {
    let store = MemoryStore::new();
    let dashboard = Dashboard::new("orders", store.clone()).with_changes(store);
    let router = dashboard.router();
    for path in PATHS {
        let refused = get(&router, path).await.expect(403);
        assert!(refused.body.contains("nobody has said who asks"), "{path}");
    }
    post(&router, "/change", "change=retry&all=yes", &[SAME_SITE])
        .await
        .expect(403);
}

#[tokio::test(start_paused = true)]
async fn a_viewer_changes_nothing_even_by_a_request_of_their_own_making() {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
    let id = noted(&store, "a");
    settle(&store, &leases, id, dead(true)).await;
    let before = all(&store).await;
    let operators = pages(&store, Role::Operator);
    let path = format!("/change?change=retry&id={id}");
    let form = form_of(&get(&operators, &path).await.expect(200).body);
    let viewers = pages(&store, Role::Viewer);
    let preview = get(&viewers, &path).await.expect(200);
    assert!(
        preview.body.contains("may not make changes") && !preview.body.contains("<form"),
        "{}",
        preview.body
    );
    for form in [form.as_str(), &format!("change=retry&id={id}")] {
        let refused = post(&viewers, "/change", form, &[SAME_SITE]).await.expect(403);
        assert!(refused.body.contains("your role"), "{}", refused.body);
    }
    for method in ["PUT", "DELETE", "PATCH"] {
        for path in ["/change", "/messages"] {
            let request = Request::builder().method(method).uri(path).body(Body::empty());
            send(&viewers, request.expect("a request")).await.expect(403);
        }
    }
    assert_eq!(all(&store).await, before);
}

#[tokio::test(start_paused = true)]
async fn a_change_needs_a_page_of_this_site_and_its_token() {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
    let id = noted(&store, "a");
    settle(&store, &leases, id, dead(true)).await;
    let before = all(&store).await;
    let operators = pages(&store, Role::Operator);
    let path = format!("/change?change=retry&id={id}");
    let form = form_of(&get(&operators, &path).await.expect(200).body);
    for site in ["cross-site", "same-site", "none"] {
        let headers = [("sec-fetch-site", site)];
        let refused = post(&operators, "/change", &form, &headers).await.expect(403);
        assert!(refused.body.contains("another site"), "{}", refused.body);
    }
    let foreign = [("host", "ops.example.org"), ("origin", "https://evil.example")];
    post(&operators, "/change", &form, &foreign).await.expect(403);
    let bare = format!("change=retry&id={id}");
    let refused = post(&operators, "/change", &bare, &[SAME_SITE]).await.expect(403);
    assert!(
        refused.body.contains("older than this program"),
        "{}",
        refused.body
    );
    // The token of another process, or of another user of this one.
    let other = pages(&store, Role::Operator);
    post(&other, "/change", &form, &[SAME_SITE]).await.expect(403);
    assert_eq!(all(&store).await, before);
    post(&operators, "/change", &form, &[SAME_SITE]).await.expect(303);
    assert_ne!(all(&store).await, before);
}

#[tokio::test(start_paused = true)]
async fn a_dashboard_that_only_reads_has_no_form_and_takes_none() {
    let store = MemoryStore::new();
    let leases = relay(&store, Fitness::Fit).await;
    let id = noted(&store, "a");
    settle(&store, &leases, id, dead(true)).await;
    let before = all(&store).await;
    let router: Router = Dashboard::new("orders", store.clone()).router();
    let router = router.layer(Extension(Access::new("ada", Role::Admin)));
    let page = get(&router, &format!("/change?change=retry&id={id}"))
        .await
        .expect(200);
    assert!(
        page.body.contains("only reads") && !page.body.contains("<form"),
        "{}",
        page.body
    );
    let form = format!("change=retry&id={id}");
    post(&router, "/change", &form, &[SAME_SITE]).await.expect(403);
    assert_eq!(all(&store).await, before);
}

#[tokio::test(start_paused = true)]
async fn each_answer_forbids_a_browser_to_load_run_or_frame_anything_foreign() {
    let store = MemoryStore::new();
    let viewers = pages(&store, Role::Viewer);
    for path in PATHS {
        let answer = get(&viewers, path).await;
        let header = |name: &str| {
            let value = answer.headers.get(name);
            value
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; "), "{path}: {policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
        assert!(
            !policy.contains("unsafe") && !policy.contains("http"),
            "{path}: {policy}"
        );
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("referrer-policy"), "same-origin", "{path}");
        let is_asset = path.starts_with("/assets/");
        assert_eq!(header("cache-control") == "no-store", !is_asset, "{path}");
        for inline in ["<style", "style=\"", " onclick", "javascript:", "//cdn"] {
            assert!(!answer.body.contains(inline), "{path}: {inline}");
        }
        for script in answer.body.split("<script").skip(1) {
            assert!(script.starts_with(" src=\"/assets/"), "{path}: {script}");
        }
    }
}
