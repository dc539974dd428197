//! Identifies a request by its owner, its key and its contents.
//!
//! Invariants: a key belongs to one tenant and principal. The database stores hashes of keys and
//! requests, so the hash function never changes.

use axum::extract::{MatchedPath, OriginalUri};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

const KEY_BYTES_MAX: usize = 255;

pub(crate) type Digest = [u8; 32];

/// The owner of a request: tenant and principal. Different owners never share a key.
///
/// Take tenant and principal from authenticated data. Otherwise one client may receive another
/// client's response. The first 255 characters of tenant and principal are stored in plain text:
/// use ids, not credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    tenant: String,
    principal: String,
}

impl Scope {
    /// A service with a single tenant passes a constant name. A request with an empty tenant or
    /// principal is treated as a request without a [`Scope`].
    pub fn new(tenant: impl Into<String>, principal: impl Into<String>) -> Self {
        Self {
            tenant: tenant.into(),
            principal: principal.into(),
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        !self.tenant.is_empty() && !self.principal.is_empty()
    }
}

/// Parses a key, bare or quoted as a string of RFC 8941.
pub(crate) fn parse_key(value: &HeaderValue) -> Option<String> {
    let text = value.to_str().ok()?.trim_matches([' ', '\t']);
    let key = match text.strip_prefix('"') {
        Some(rest) => unquote(rest.strip_suffix('"')?)?,
        None => text.to_owned(),
    };
    let legal = (1..=KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    legal.then_some(key)
}

fn unquote(inner: &str) -> Option<String> {
    let mut characters = inner.chars();
    let mut key = String::with_capacity(inner.len());
    while let Some(character) = characters.next() {
        key.push(match character {
            '"' => return None,
            '\\' => characters
                .next()
                .filter(|escaped| matches!(escaped, '"' | '\\'))?,
            other => other,
        });
    }
    Some(key)
}

#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) id: Digest,
    pub(crate) scope: Scope,
    pub(crate) key: String,
    pub(crate) route: String,
    pub(crate) fingerprint: Digest,
    pub(crate) kept: bool,
}

impl Claim {
    pub(crate) fn new(named: Option<(Scope, String)>, parts: &Parts, body: &[u8]) -> Self {
        let uri = parts
            .extensions
            .get::<OriginalUri>()
            .map_or(&parts.uri, |original| &original.0);
        let resource = uri
            .path_and_query()
            .map_or(uri.path(), |resource| resource.as_str());
        let matched = parts.extensions.get::<MatchedPath>();
        let path = matched.map_or(uri.path(), MatchedPath::as_str);
        let content_type = parts
            .headers
            .get(CONTENT_TYPE)
            .map_or(&[][..], HeaderValue::as_bytes);
        let kept = named.is_some();
        let (scope, key) = named.unwrap_or_else(|| (Scope::new("", ""), Uuid::now_v7().simple().to_string()));
        Self {
            id: digest([&scope.tenant, &scope.principal, &key].map(String::as_bytes)),
            route: format!("{} {path}", parts.method),
            fingerprint: digest([
                parts.method.as_str().as_bytes(),
                resource.as_bytes(),
                body,
                content_type,
            ]),
            scope,
            key,
            kept,
        }
    }

    pub(crate) fn tenant(&self) -> &str {
        &self.scope.tenant
    }

    pub(crate) fn principal(&self) -> &str {
        &self.scope.principal
    }
}

fn digest<const N: usize>(parts: [&[u8]; N]) -> Digest {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[test]
    fn keys_are_read_bare_and_quoted() {
        let long = "k".repeat(255);
        for (value, expected) in [
            ("abc", Some("abc")),
            (" abc\t", Some("abc")),
            ("\"abc\"", Some("abc")),
            (r#""a\"b\\c""#, Some(r#"a"b\c"#)),
            (r#"a"b\c"#, Some(r#"a"b\c"#)),
            (
                "8e03978e-40d5-43dd-bc93-6894a57f9324",
                Some("8e03978e-40d5-43dd-bc93-6894a57f9324"),
            ),
            ("!~,;", Some("!~,;")),
            (&long, Some(&*long)),
            ("", None),
            ("\"\"", None),
            ("\"", None),
            ("\"abc", None),
            ("\"a\"b\"", None),
            (r#""abc\""#, None),
            (r#""a\bc""#, None),
            ("\"abc\";p=1", None),
            ("a b", None),
            ("\"a b\"", None),
            ("one, two", None),
            (&format!("{long}k"), None),
        ] {
            let header = HeaderValue::from_str(value).unwrap();
            assert_eq!(parse_key(&header).as_deref(), expected, "{value:?}");
        }
        let bytes = HeaderValue::from_bytes(b"caf\xc3\xa9").unwrap();
        assert_eq!(parse_key(&bytes), None);
        let quoted = HeaderValue::from_str(&format!("\"{}\"", "\\\\".repeat(255))).unwrap();
        assert_eq!(parse_key(&quoted), Some("\\".repeat(255)), "escapes do not count");
    }

    fn claim(tenant: &str, principal: &str, key: &str, request: &str, body: &str) -> Claim {
        let (method, uri) = request.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        let named = Some((Scope::new(tenant, principal), key.to_owned()));
        Claim::new(named, &request.into_parts().0, body.as_bytes())
    }

    #[test]
    fn tenant_principal_and_key_identify_a_request() {
        let id = |tenant, principal, key| claim(tenant, principal, key, "POST /", "").id;
        assert_eq!(id("t", "p", "k"), id("t", "p", "k"));
        for other in [
            id("u", "p", "k"),
            id("t", "q", "k"),
            id("t", "p", "l"),
            id("tp", "", "k"),
            id("", "tp", "k"),
            id("t", "pk", ""),
        ] {
            assert_ne!(other, id("t", "p", "k"));
        }
    }

    #[test]
    fn hashes_are_frozen() {
        let claim = claim("tenant", "principal", "key", "POST /orders?x=1", "body");
        let hex = |digest: Digest| {
            digest
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        assert_eq!(
            hex(claim.id),
            "0f53802bdd56703d3afb8eeb9849510c7c145b0d98910f85ac7793175fd2df73"
        );
        assert_eq!(
            hex(claim.fingerprint),
            "66ba97cc2a24ca3d937ed3f249015865b383e5d48ee67dabb06542b32aade630"
        );
    }
}
