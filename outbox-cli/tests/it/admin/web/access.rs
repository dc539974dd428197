//! Access control and response headers.

use axum::body::Body;
use axum::http::Request;
use outbox_testing::MemoryStore;

use super::{get, pages, send};

const PATHS: [&str; 7] = [
    "/",
    "/messages",
    "/messages/019ab000-0000-7000-8000-000000000001",
    "/aggregate?of=probe/a",
    "/dead-letters",
    "/assets/style.css",
    "/nothing",
];

#[tokio::test(start_paused = true)]
async fn pages_accept_reads_only() {
    let router = pages(&MemoryStore::new());
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        for path in ["/", "/messages"] {
            let request = Request::builder().method(method).uri(path).body(Body::empty());
            send(&router, request.expect("a request")).await.expect(405);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn responses_forbid_foreign_content_and_framing() {
    let store = MemoryStore::new();
    let viewers = pages(&store);
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
