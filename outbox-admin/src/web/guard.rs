//! What holds for each request and each answer, whatever the page: nobody without an access, no change by a weaker role, none that another site has made, and
//! the headers that keep a browser from loading or framing anything foreign.

use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::access::Access;

/// Nothing is loaded but what this program serves; nothing is inline; no other page frames it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);

/// The headers of all answers. `same-origin` leaves the forms of these pages an `Origin`, which `no-referrer` would take from them.
const HEADERS: [(HeaderName, HeaderValue); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// Lets a request through or refuses it, and sets the headers of the answer.
pub(super) async fn guard(request: Request, next: Next) -> Response {
    let refused = refusal(&request);
    let mut response = match refused {
        Some(why) => (StatusCode::FORBIDDEN, format!("{why}\n")).into_response(),
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        // The style sheet and the script have a longer life of their own.
        if !response.headers().contains_key(&name) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Why a request is refused, before any page sees it.
fn refusal(request: &Request) -> Option<&'static str> {
    let Some(access) = request.extensions().get::<Access>() else {
        return Some(
            "nobody has said who asks; log in, or let the application put an `Access` into the request",
        );
    };
    if [Method::GET, Method::HEAD].contains(request.method()) {
        return None;
    }
    if !access.may_change() {
        return Some("your role may not make changes; ask somebody with the role operator");
    }
    if !is_own(request.headers()) {
        return Some("another site has made this request; open the page here and send its form");
    }
    None
}

/// Whether a request that changes something comes from a page of this site. A browser says so in `Sec-Fetch-Site`, an older one in `Origin`; a program that is
/// no browser says neither, and needs the token all the same.
fn is_own(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    let Some(origin) = headers.get(ORIGIN) else {
        return true;
    };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    matches!((origin, host), (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &'static str)], expected: bool) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_static(value));
        }
        assert_eq!(is_own(&map), expected, "{headers:?}");
    }

    #[test]
    fn a_request_of_another_site_is_told_apart() {
        let host = ("host", "ops.example.org");
        check(&[host, ("sec-fetch-site", "same-origin")], true);
        check(&[host, ("sec-fetch-site", "same-site")], false);
        check(&[host, ("sec-fetch-site", "cross-site")], false);
        check(&[host, ("sec-fetch-site", "none")], false);
        check(&[host, ("origin", "https://ops.example.org")], true);
        check(&[host, ("origin", "https://example.org")], false);
        check(&[host, ("origin", "null")], false);
        check(&[("origin", "https://ops.example.org")], false);
        let both = [
            host,
            ("origin", "https://ops.example.org"),
            ("sec-fetch-site", "cross-site"),
        ];
        check(&both, false);
        check(&[host], true);
    }
}
