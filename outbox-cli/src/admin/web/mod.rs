//! The dashboard of `outbox serve`, as an axum router. Pages are HTML and work without JavaScript.
//!
//! Invariants:
//!
//! - Pages change nothing: they show the command for a change.
//! - Pages show no payloads.
//! - Browsers load nothing from other sites and run no script from a message.
//! - Open pages share their reads: database load is independent of the number of pages.

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
use outbox::core::OutboxReader;
use outbox::inbox::DeadLetters;

pub use crate::admin::stream_view::{InboxView, StreamView};

use crate::admin::stream_view::NoStream;
use sampler::Sampler;
use visit::Problem;

const TIMEOUT: Duration = Duration::from_secs(5);

/// The dashboard of an outbox.
pub struct Dashboard<S> {
    /// Title.
    pub name: Arc<str>,
    /// A read-only store.
    pub store: S,
    /// Stream positions and consumers.
    pub stream: Arc<dyn StreamView>,
    /// Dead letters of consumers.
    pub letters: Option<DeadLetters>,
    /// Timeout of queries.
    pub timeout: Duration,
    sampler: Sampler,
}

impl<S> fmt::Debug for Dashboard<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Dashboard");
        debug.field("name", &self.name).finish_non_exhaustive()
    }
}

impl<S: OutboxReader> Dashboard<S> {
    /// A dashboard without stream and dead letters, with a timeout of five seconds.
    pub fn new(name: impl Into<Arc<str>>, store: S) -> Self {
        Self {
            name: name.into(),
            store,
            stream: Arc::new(NoStream),
            letters: None,
            timeout: TIMEOUT,
            sampler: Sampler::default(),
        }
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
            .with_state(Arc::new(self))
            .layer(axum::middleware::from_fn(guard::guard))
    }
}

impl<S> Dashboard<S> {
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
