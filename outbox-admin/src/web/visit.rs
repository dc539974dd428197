//! A request, what a page has to say to it, and why there is none.

use std::sync::Arc;

use axum::extract::{FromRequestParts, OriginalUri};
use axum::http::header::ACCEPT;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use maud::{Markup, html};
use outbox_core::{StoreError, describe};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sea_orm::DbErr;
use serde::Serialize;
use serde_json::Value;

use super::access::Access;
use super::{App, Site};

/// What stays as it is in a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b':');

/// A request: who asks, where the dashboard is mounted, and in which form they want the answer.
pub(super) struct Visit {
    pub(super) site: Arc<Site>,
    pub(super) access: Access,
    /// The path of the dashboard, without a slash at its end.
    base: String,
    /// The path below it, without `.json`.
    pub(super) path: String,
    pub(super) wants_json: bool,
}

/// What a page has to say.
pub(super) struct Page {
    pub(super) title: String,
    pub(super) body: Markup,
    pub(super) data: Value,
    /// Whether the page shows the present, and is loaded again after a while.
    pub(super) is_live: bool,
}

impl Page {
    pub(super) fn new(title: impl Into<String>, data: &impl Serialize, body: Markup) -> Self {
        Self {
            title: title.into(),
            body,
            // Serialising into memory fails for maps whose keys are no texts; there are none.
            data: serde_json::to_value(data).unwrap_or(Value::Null),
            is_live: false,
        }
    }
}

/// Why there is no page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    /// There is nothing here.
    NotFound(String),
    /// The address is wrong.
    Malformed(String),
    /// The database does not answer, or refuses.
    Failed(String),
    /// No answer came in time.
    Silent(String),
}

impl Problem {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::Failed(_) => StatusCode::BAD_GATEWAY,
            Self::Silent(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    pub(super) fn text(&self) -> &str {
        let (Self::NotFound(text) | Self::Malformed(text) | Self::Failed(text) | Self::Silent(text)) = self;
        text
    }

    pub(super) fn title(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "Not found",
            Self::Malformed(_) => "Malformed",
            Self::Failed(_) => "Database unavailable",
            Self::Silent(_) => "No answer in time",
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::Failed(describe(&error))
    }
}

impl From<DbErr> for Problem {
    fn from(error: DbErr) -> Self {
        Self::Failed(describe(&error))
    }
}

impl Visit {
    /// The address of a page of the dashboard.
    pub(super) fn link(&self, path: &str, query: &[(&str, &str)]) -> String {
        // A router that is mounted at `/ops` answers there, and not at `/ops/`.
        let path = match path {
            "/" if !self.base.is_empty() => "",
            path => path,
        };
        let mut link = format!("{}{path}", self.base);
        let given = query.iter().filter(|(_, value)| !value.is_empty());
        for (number, (name, value)) in given.enumerate() {
            link.push(if number == 0 { '?' } else { '&' });
            link.push_str(name);
            link.push('=');
            link.extend(utf8_percent_encode(value, PLAIN));
        }
        link
    }
}

impl<S: Send + Sync> FromRequestParts<Arc<App<S>>> for Visit {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App<S>>) -> Result<Self, StatusCode> {
        // The guard has refused requests without it.
        let access = parts
            .extensions
            .get::<Access>()
            .ok_or(StatusCode::FORBIDDEN)?
            .clone();
        let outer = OriginalUri::from_request_parts(parts, app).await;
        let outer = outer.map_or_else(|_| parts.uri.clone(), |OriginalUri(uri)| uri);
        let inner = parts.uri.path();
        // At the root of where it is nested, the outer path has no slash that the inner one could be.
        let mounted = match inner {
            "/" => outer.path(),
            inner => outer.path().strip_suffix(inner).unwrap_or_default(),
        };
        let mounted = mounted.trim_end_matches('/');
        Ok(Self {
            base: mounted.to_owned(),
            path: inner.strip_suffix(".json").unwrap_or(inner).to_owned(),
            wants_json: inner.ends_with(".json") || accepts_json(&parts.headers),
            access,
            site: app.site.clone(),
        })
    }
}

/// Whether JSON is asked for, and no page is.
fn accepts_json(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("application/json") && !accept.contains("text/html"))
}
