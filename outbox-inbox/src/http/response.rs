//! Decides which responses are stored and how, and makes the layer's own responses.
//!
//! Invariant: a stored response holds no cookie and no value marked as sensitive; otherwise it is the first client's response, byte for byte. Not
//! here: the database, see [`super::sql`].

use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::response::Parts;
use axum::http::{Response, StatusCode};

use super::key::Digest;

/// Marks a replayed response.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Seconds after which the client may retry.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Headers that are never stored: those of one connection or one moment, those that the server adds anew, and secrets.
const OMITTED: [HeaderName; 14] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    header::DATE,
    header::SET_COOKIE,
    header::PROXY_AUTHENTICATE,
    HeaderName::from_static("proxy-authentication-info"),
    HeaderName::from_static("authentication-info"),
    REPLAYED,
];

/// Whether a response is the final result of the request, so that its transaction commits and the response is stored. A failure (5xx) is not, and
/// neither is a request to try again: if stored, it would be the answer for as long as the key lives.
pub(crate) fn is_result(status: StatusCode) -> bool {
    let asks_again = [
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    (200..500).contains(&status.as_u16()) && !asks_again.contains(&status)
}

/// A response as it is stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) fingerprint: Digest,
    pub(crate) status: u16,
    /// Names and values; a value has one character per byte.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Stored {
    pub(crate) fn new(fingerprint: Digest, parts: &Parts, body: &Bytes, omitted: &[HeaderName]) -> Self {
        let named_by_connection = |name: &HeaderName| {
            let values = parts.headers.get_all(header::CONNECTION).iter();
            values
                .filter_map(|value| value.to_str().ok())
                .flat_map(|value| value.split(','))
                .any(|part| part.trim().eq_ignore_ascii_case(name.as_str()))
        };
        let headers = parts.headers.iter().filter(|(name, value)| {
            !OMITTED.contains(name)
                && !omitted.contains(name)
                && !value.is_sensitive()
                && !named_by_connection(name)
        });
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

    /// Rebuilds the response. `None` if the row was not written by this layer.
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

/// An answer of the layer itself, as `application/problem+json` (RFC 9457).
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
    fn what_belongs_to_a_connection_is_not_kept() {
        let response = Response::builder()
            .header("connection", "close, X-Hop")
            .header("x-hop", "1")
            .header("set-cookie", "session=1")
            .header("x-mine", "1")
            .header("x-kept", "1")
            .body(())
            .unwrap();
        let omitted = [HeaderName::from_static("x-mine")];
        let stored = Stored::new([0; 32], &response.into_parts().0, &Bytes::new(), &omitted);
        assert_eq!(stored.headers, [("x-kept".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn failures_and_requests_to_try_again_are_no_results() {
        let (results, others): (Vec<u16>, Vec<u16>) = [
            100, 101, 200, 204, 302, 400, 404, 408, 409, 422, 425, 429, 499, 500, 503,
        ]
        .into_iter()
        .partition(|status| is_result(StatusCode::from_u16(*status).unwrap()));
        assert_eq!(results, [200, 204, 302, 400, 404, 409, 422, 499]);
        assert_eq!(others, [100, 101, 408, 425, 429, 500, 503]);
    }
}
