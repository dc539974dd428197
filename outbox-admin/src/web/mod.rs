//! The dashboard: pages for an axum application, or for `outbox serve`.
//!
//! [`Dashboard`] creates a router that can be nested at any path. Pages are HTML and work
//! without JavaScript. Programs use the command line with `-o json`.
//!
//! ```
//! use axum::{Extension, Router};
//! use outbox_admin::web::{Access, Dashboard};
//! # use outbox_core::OutboxReader;
//!
//! # fn mounted(store: impl OutboxReader) -> Router {
//! let pages = Dashboard::new("orders", store).router();
//! // A real application puts the user here that its own login has found out.
//! let pages = pages.layer(Extension(Access::new("ada")));
//! Router::new().nest("/ops/outbox", pages)
//! # }
//! ```
//!
//! Invariants:
//!
//! - A request without an [`Access`] extension is rejected. Authentication is the application's
//!   task.
//! - Pages change nothing: they show the command for a change.
//! - Pages show no payloads.
//! - Browsers load nothing from other sites and run no script from a message.
//! - Open pages share their reads: database load is independent of the number of pages.

mod access;
mod assets;
mod filter;
mod guard;
mod layout;
mod pages;
mod sampler;
mod visit;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use outbox_core::OutboxReader;
use outbox_inbox::DeadLetters;

pub use crate::stream_view::{InboxView, StreamView};
pub use access::Access;

use crate::stream_view::NoStream;
use sampler::Sampler;
use visit::Problem;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Builder of the dashboard.
#[must_use = "call `router`"]
pub struct Dashboard<S>(App<S>);

pub(crate) struct App<S> {
    name: Arc<str>,
    store: S,
    stream: Arc<dyn StreamView>,
    letters: Option<DeadLetters>,
    sampler: Sampler,
    timeout: Duration,
}

impl<S> fmt::Debug for Dashboard<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Dashboard");
        debug.field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl<S: OutboxReader> Dashboard<S> {
    /// A dashboard with a title. Use a read-only store.
    pub fn new(name: impl Into<Arc<str>>, store: S) -> Self {
        Self(App {
            name: name.into(),
            store,
            stream: Arc::new(NoStream),
            letters: None,
            sampler: Sampler::default(),
            timeout: TIMEOUT,
        })
    }

    /// Adds stream positions and consumers.
    pub fn with_stream(mut self, stream: impl StreamView) -> Self {
        self.0.stream = Arc::new(stream);
        self
    }

    /// Adds consumer dead letters.
    pub fn with_dead_letters(mut self, letters: DeadLetters) -> Self {
        self.0.letters = Some(letters);
        self
    }

    /// Sets the timeout of queries. Default: five seconds.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// The router.
    pub fn router(self) -> Router {
        use pages::{aggregate, letters, messages, nothing, overview};
        Router::new()
            .route("/", get(overview::get::<S>))
            .route("/messages", get(messages::list::<S>))
            .route("/messages/{id}", get(messages::one::<S>))
            .route("/aggregate", get(aggregate::get::<S>))
            .route("/dead-letters", get(letters::list::<S>))
            .route("/assets/{name}", get(assets::get))
            .fallback(nothing)
            .with_state(Arc::new(self.0))
            .layer(axum::middleware::from_fn(guard::guard))
    }
}

impl<S> App<S> {
    async fn ask<T, E: Into<Problem>>(
        &self,
        question: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Problem> {
        match tokio::time::timeout(self.timeout, question).await {
            Ok(answer) => answer.map_err(Into::into),
            Err(_) => Err(Problem::Silent(format!(
                "the database has not answered within {:?}",
                self.timeout
            ))),
        }
    }
}
