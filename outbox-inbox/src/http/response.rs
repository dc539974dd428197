//! Decides which responses are stored and how, and builds the layer's own responses.
//!
//! Invariant: a stored response never has a sensitive value or a header outside a closed list.

use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::response::Parts;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;

use super::key::Digest;

/// A response that commits and is stored, whatever its status.
///
/// For a rejection that is a valid result, such as a declined payment, or a failure after an
/// irreversible effect.
///
/// ```
/// use axum::http::StatusCode;
/// use axum::response::IntoResponse;
/// use outbox_inbox::http::{Committed, RequestTx};
///
/// async fn pay(tx: RequestTx) -> impl IntoResponse {
///     // … record the declined payment through `tx`.
///     Committed((StatusCode::PAYMENT_REQUIRED, "declined"))
/// }
/// ```
///
/// Layers between the handler and the [`IdempotencyLayer`](super::IdempotencyLayer) must preserve
/// the response's extensions. An informational status (1xx) is always rolled back.
#[derive(Debug, Clone, Copy)]
pub struct Committed<R>(pub R);

#[derive(Debug, Clone, Copy)]
struct Commits;

impl<R: IntoResponse> IntoResponse for Committed<R> {
    fn into_response(self) -> Response<Body> {
        let mut response = self.0.into_response();
        response.extensions_mut().insert(Commits);
        response
    }
}

pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// The stored headers. Other headers may be secrets, or apply to one client, connection or moment
/// only. The server adds `Content-Length`.
const STORED: [HeaderName; 12] = [
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
    header::CONTENT_TYPE,
    header::ETAG,
    header::EXPIRES,
    header::LAST_MODIFIED,
    header::LINK,
    header::LOCATION,
    header::VARY,
];

/// Whether the layer commits the transaction and stores the response. A committed failure would
/// keep half of an effect, and a stored rejection would outlast its cause.
///
/// `taken`: whether the handler has extracted the transaction. If not, a redirection comes from an
/// inner layer.
pub(crate) fn commits(parts: &Parts, taken: bool) -> bool {
    let is_said = parts.extensions.get::<Commits>().is_some();
    let status = parts.status;
    status.is_success() || status.is_redirection() && taken || is_said && !status.is_informational()
}

#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) fingerprint: Digest,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Stored {
    pub(crate) fn new(fingerprint: Digest, parts: &Parts, body: &Bytes, also: &[HeaderName]) -> Self {
        let headers = parts
            .headers
            .iter()
            .filter(|(name, value)| (STORED.contains(name) || also.contains(name)) && !value.is_sensitive());
        Self {
            fingerprint,
            status: parts.status.as_u16(),
            headers: headers
                .map(|(name, value)| {
                    let value = value.as_bytes().iter().copied().map(char::from).collect();
                    (name.as_str().to_owned(), value)
                })
                .collect(),
            body: body.to_vec(),
        }
    }

    pub(crate) fn replay(self) -> Option<Response<Body>> {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = StatusCode::from_u16(self.status).ok()?;
        for (name, value) in self.headers {
            let bytes: Vec<u8> = value.chars().map(u8::try_from).collect::<Result<_, _>>().ok()?;
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            response
                .headers_mut()
                .append(name, HeaderValue::from_bytes(&bytes).ok()?);
        }
        response
            .headers_mut()
            .insert(REPLAYED, HeaderValue::from_static("true"));
        Some(response)
    }
}

pub(crate) fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    let title = status.canonical_reason().unwrap_or_default();
    let body = serde_json::json!({"type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail});
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    if [StatusCode::CONFLICT, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
        headers.insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_and_failures_commit_only_as_committed() {
        let of = |status| StatusCode::from_u16(status).unwrap().into_response();
        let all = [
            100, 101, 199, 200, 204, 302, 399, 400, 401, 422, 499, 500, 599, 999,
        ];
        let commit = |response: Response<Body>| commits(&response.into_parts().0, true);
        let plain = all.into_iter().filter(|status| commit(of(*status)));
        assert_eq!(plain.collect::<Vec<_>>(), [200, 204, 302, 399]);
        let early = all
            .into_iter()
            .filter(|status| commits(&of(*status).into_parts().0, false));
        assert_eq!(early.collect::<Vec<_>>(), [200, 204]);
        let said = all
            .into_iter()
            .filter(|status| commit(Committed(of(*status)).into_response()));
        assert_eq!(said.collect::<Vec<_>>(), all[3..]);
    }
}
