//! Requests, pages and error responses.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{Html, IntoResponse as _, Response};
use maud::{Markup, html};
use outbox::core::{StoreError, describe};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sea_orm::DbErr;

use super::{Dashboard, layout};

const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b':');

pub(super) struct Visit {
    pub(super) name: Arc<str>,
    pub(super) path: String,
}

pub(super) struct Page {
    pub(super) title: String,
    pub(super) body: Markup,
    pub(super) is_live: bool,
}

impl Page {
    pub(super) fn new(title: impl Into<String>, body: Markup) -> Self {
        Self {
            title: title.into(),
            body,
            is_live: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    NotFound(String),
    Malformed(String),
    Failed(String),
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
            Self::Silent(_) => "Query timed out",
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
    pub(super) fn respond(&self, made: Result<Page, Problem>) -> Response {
        let (status, page) = match made {
            Ok(page) => (StatusCode::OK, page),
            Err(problem) => {
                let body = html! { p.error role="alert" { (problem.text()) } };
                (problem.status(), Page::new(problem.title(), body))
            }
        };
        (status, Html(layout::page(self, &page).into_string())).into_response()
    }
}

pub(super) fn link(path: &str, query: &[(&str, &str)]) -> String {
    let mut link = path.to_owned();
    let given = query.iter().filter(|(_, value)| !value.is_empty());
    for (number, (name, value)) in given.enumerate() {
        link.push(if number == 0 { '?' } else { '&' });
        link.push_str(name);
        link.push('=');
        link.extend(utf8_percent_encode(value, PLAIN));
    }
    link
}

impl<S: Send + Sync> FromRequestParts<Arc<Dashboard<S>>> for Visit {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<Dashboard<S>>) -> Result<Self, Infallible> {
        Ok(Self {
            path: parts.uri.path().to_owned(),
            name: app.name.clone(),
        })
    }
}
