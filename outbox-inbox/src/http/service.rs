//! Handles a request: reads it, claims its key, calls the handler, and commits with the response.
//!
//! Invariant: the transaction runs in a spawned task that is never aborted, and the response is
//! sent after the commit.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, response};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use outbox_core::{MessageContext, wake};
use outbox_sea_orm::detached;
use sea_orm::DbErr;
use tokio::time::timeout;
use tower::Service;
use tracing::Instrument as _;

use super::key::{Claim, Scope, parse_key};
use super::response::{Stored, commits, problem};
use super::settings::{Checked, MissingKey, Settings};
use super::sql::Claimed;
use super::transaction::{Closed, RequestTx};
use crate::database::{Trouble, roll_back, trouble};
use crate::handler::describe;
use crate::panics::text_of;
use crate::runtime::InboxError;

const KEY_HEADER: &str = "idempotency-key";

const METHODS: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// The service built by an [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> std::fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Idempotency")
    }
}

impl<S> Idempotency<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S> Service<Request> for Idempotency<S>
where
    S: Service<Request, Error = Infallible> + Clone + Send + 'static,
    S::Response: IntoResponse,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // With two layers, the inner layer would find the key in use.
        let is_handled = request.extensions().get::<RequestTx>().is_some();
        if is_handled || !METHODS.contains(request.method()) {
            return Box::pin(
                self.inner
                    .call(request)
                    .map(|response| response.map(IntoResponse::into_response)),
            );
        }
        let next = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, next);
        let settings = self.settings.clone();
        Box::pin(async move {
            Ok(answer(settings, service, request)
                .await
                .unwrap_or_else(|refusal| refusal))
        })
    }
}

async fn answer<S>(settings: Arc<Settings>, service: S, request: Request) -> Result<Response, Response>
where
    S: Service<Request, Error = Infallible> + Send + 'static,
    S::Response: IntoResponse,
    S::Future: Send,
{
    let (parts, body) = request.into_parts();
    let named = named(&settings, &parts)?;
    // The body is read first, so that a slow client blocks neither the key nor a connection.
    let body = read(body, settings.request_bytes_max).await?;
    let claim = Claim::new(named, &parts, &body);
    let running = settings.running.enter(claim.id).ok_or_else(in_use)?;
    let request = Request::from_parts(parts, Body::from(body));
    let work = async move {
        let answer = handle(&settings, &claim, service, request).await;
        drop(running);
        answer
    };
    detached(MessageContext::current().scope(work).in_current_span()).await
}

#[expect(clippy::result_large_err, reason = "it is an answer, made once per request")]
fn named(settings: &Settings, parts: &Parts) -> Result<Option<(Scope, String)>, Response> {
    let mut keys = parts.headers.get_all(KEY_HEADER).iter();
    let key = match (keys.next(), keys.next(), settings.missing_key) {
        (None, _, MissingKey::PassThrough) => return Ok(None),
        (None, _, MissingKey::Refuse) => {
            return Err(problem(
                StatusCode::BAD_REQUEST,
                &format!("the header {KEY_HEADER} is missing"),
            ));
        }
        (Some(key), None, _) => parse_key(key),
        (Some(_), Some(_), _) => None,
    };
    let key = key.ok_or_else(|| {
        let detail =
            format!("the header {KEY_HEADER} must be one string of 1 to 255 visible ASCII characters");
        problem(StatusCode::BAD_REQUEST, &detail)
    })?;
    match (settings.scope)(parts).filter(Scope::is_complete) {
        Some(scope) => Ok(Some((scope, key))),
        None => Err(problem(StatusCode::UNAUTHORIZED, "authentication required")),
    }
}

async fn read(body: Body, bytes_max: usize) -> Result<Bytes, Response> {
    let too_large = || {
        let detail = format!("the body is larger than {bytes_max} bytes");
        problem(StatusCode::PAYLOAD_TOO_LARGE, &detail)
    };
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    match Limited::new(body, bytes_max).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(_) => Err(problem(StatusCode::BAD_REQUEST, "the body could not be read")),
    }
}

async fn handle<S>(
    settings: &Settings,
    claim: &Claim,
    service: S,
    mut request: Request,
) -> Result<Response, Response>
where
    S: Service<Request, Error = Infallible>,
    S::Response: IntoResponse,
{
    let Checked { database, sql, .. } = settings.checked().await.map_err(|error| not_checked(&error))?;
    // Until the commit, a crash rolls back row, effects, events and response together.
    let tx = database
        .begin()
        .await
        .map_err(|error| in_trouble("begin", &error))?;
    let refusal = match sql.claim(&tx, claim).await {
        Ok(Claimed::Mine) => None,
        Ok(Claimed::Running) => Some(in_use()),
        Ok(Claimed::Done(stored)) if stored.fingerprint == claim.fingerprint => Some(replay(stored)),
        Ok(Claimed::Done(_)) => {
            let detail =
                "the key was used for a request with another method, path, query, content type or body";
            Some(problem(StatusCode::UNPROCESSABLE_ENTITY, detail))
        }
        Err(error) => Some(in_trouble("claim", &error)),
    };
    if let Some(refusal) = refusal {
        roll_back(tx).await;
        return Err(refusal);
    }
    let tx = RequestTx::new(tx, settings.outbox.clone());
    request.extensions_mut().insert(tx.clone());
    let outcome = call(settings, service, request).await;
    let Some(Closed {
        transaction: tx,
        recorded,
        taken,
        integrity,
    }) = tx.close()
    else {
        tracing::error!(route = %claim.route, "handler kept a `RequestTx` after its response, rolled back");
        return Err(failed());
    };
    let (parts, body) = match outcome {
        Ok(response) => response,
        Err(refusal) => {
            roll_back(tx).await;
            return Err(refusal);
        }
    };
    if !commits(&parts, taken) {
        roll_back(tx).await;
        return Ok(Response::from_parts(parts, Body::from(body)));
    }
    if let Err(error) = integrity.verify(&tx).await {
        roll_back(tx).await;
        return Err(match trouble(&error) {
            Trouble::Statement => swallowed(claim, Some(&error)),
            _ => in_trouble("commit", &error),
        });
    }
    let stored = claim
        .kept
        .then(|| Stored::new(claim.fingerprint, &parts, &body, &settings.also_stored));
    let refusal = match sql.finish(&tx, &claim.id, stored).await {
        Ok(true) => None,
        Ok(false) => Some(swallowed(claim, None)),
        Err(error) if trouble(&error) == Trouble::Statement => Some(swallowed(claim, Some(&error))),
        Err(error) => Some(in_trouble("store the response", &error)),
    };
    if let Some(refusal) = refusal {
        roll_back(tx).await;
        return Err(refusal);
    }
    // An error may hide a successful commit. In this case, a retried request gets the stored
    // response.
    tx.commit().await.map_err(|error| in_trouble("commit", &error))?;
    if recorded {
        wake::notify();
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}

async fn call<S>(
    settings: &Settings,
    mut service: S,
    request: Request,
) -> Result<(response::Parts, Bytes), Response>
where
    S: Service<Request, Error = Infallible>,
    S::Response: IntoResponse,
{
    let path = request.uri().path().to_owned();
    let bytes_max = settings.response_bytes_max;
    let work = async {
        let (parts, body) = match service.call(request).await {
            Ok(response) => response.into_response().into_parts(),
            Err(never) => match never {},
        };
        match Limited::new(body, bytes_max).collect().await {
            Ok(body) => Ok((parts, body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => {
                tracing::error!(
                    path,
                    bytes_max,
                    "response is larger than `response_bytes_max`, rolled back"
                );
                Err(failed())
            }
            Err(error) => {
                tracing::error!(path, error = %describe(&*error), "response body failed, rolled back");
                Err(failed())
            }
        }
    };
    match timeout(settings.handler_timeout, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => {
            tracing::error!(path, panic = %text_of(&*panic), "handler panicked, rolled back");
            Err(failed())
        }
        Err(_) => {
            tracing::error!(path, limit = ?settings.handler_timeout, "handler did not finish in time, rolled back");
            Err(unavailable())
        }
    }
}

fn replay(stored: Stored) -> Response {
    stored.replay().unwrap_or_else(|| {
        tracing::error!("a stored response cannot be read");
        failed()
    })
}

fn in_use() -> Response {
    problem(StatusCode::CONFLICT, "a request with this key is being handled")
}

fn failed() -> Response {
    problem(StatusCode::INTERNAL_SERVER_ERROR, "the request failed")
}

fn unavailable() -> Response {
    problem(StatusCode::SERVICE_UNAVAILABLE, "retry with the same key")
}

fn in_trouble(what: &str, error: &DbErr) -> Response {
    let text = describe(error);
    if trouble(error) == Trouble::Statement {
        tracing::error!(what, error = text, "request failed on the database");
        return failed();
    }
    tracing::warn!(
        what,
        error = text,
        "database unavailable, request answered with 503"
    );
    unavailable()
}

fn not_checked(error: &InboxError) -> Response {
    match error {
        InboxError::Tables(error) => in_trouble("check the table", error),
        error => {
            tracing::error!(%error, "idempotency layer is misconfigured");
            failed()
        }
    }
}

fn swallowed(claim: &Claim, error: Option<&DbErr>) -> Response {
    tracing::error!(
        route = %claim.route,
        error = error.map(|error| describe(error)),
        "the response cannot be stored: the handler probably continued after a database error; answer \
         database errors with a 5xx, or run a part that may fail inside `tx.begin()`"
    );
    failed()
}
