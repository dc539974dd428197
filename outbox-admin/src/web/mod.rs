//! The dashboard: pages for an axum application, or for `outbox serve`.
//!
//! [`Dashboard`] makes a router that can be nested at any path. Each page is HTML that works without JavaScript, and JSON at the same address with `.json`
//! behind it or with `Accept: application/json`.
//!
//! ```
//! use axum::{Extension, Router};
//! use outbox_admin::web::{Access, Dashboard, Role};
//! # use outbox_core::OutboxAudit;
//!
//! # fn mounted(store: impl OutboxAudit) -> Router {
//! let pages = Dashboard::new("orders", store).router();
//! // A real application puts the user here that its own login has found out.
//! let pages = pages.layer(Extension(Access::new("ada", Role::Viewer)));
//! Router::new().nest("/ops/outbox", pages)
//! # }
//! ```
//!
//! **Promised**: a request whose extensions hold no [`Access`] is refused, whatever it asks for. Nothing is changed but by a `POST` of somebody with the role
//! operator, from a page of this router that said before what the change would do, and only if the application has called [`Dashboard::with_changes`]. A
//! payload is only shown to those who may see payloads, and never with a sensitive field. A browser loads nothing from elsewhere, and runs no script of a
//! message. Open pages share their reads: a thousand of them ask the database no more than one. A proof, which reads each row of a span, is begun by a `POST` of
//! an operator, one at a time, and changes nothing.
//!
//! **Not promised**: that a change took what its preview had counted. It takes what its selection finds then.
//!
//! Not here: who somebody is. That is found out by the application, or by `outbox serve`.

mod access;
mod answer;
mod assets;
mod chart;
mod examiner;
mod filter;
mod guard;
mod history;
mod layout;
mod pages;
mod prover;
mod sampler;
mod source;
mod token;
mod trace;
mod visit;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use outbox_core::{OutboxAudit, SensitiveFields};
use outbox_inbox::{DeadLetters, InboxOperations};

pub use crate::doctor::Examination;
pub use access::{Access, Role};
pub use source::{InboxView, ProofSpan, Refuses, StreamView, Takers, TakersOf};

use examiner::Examiner;
pub use layout::Colour;
use prover::Prover;
use sampler::Sampler;
use source::{NoStream, Outbox, Over};
use token::Tokens;
pub use trace::{TraceLink, TraceLinkError};
use visit::Problem;

/// How long an answer of the database is waited for, unless the application says otherwise.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a dashboard shows, and what may be done there.
#[must_use = "call `router`"]
pub struct Dashboard(App);

/// The state of the router.
pub(crate) struct App {
    name: String,
    /// How commands are called.
    program: String,
    base: String,
    outbox: Arc<dyn Outbox>,
    changes: Option<Arc<dyn Outbox>>,
    stream: Arc<dyn StreamView>,
    letters: Option<DeadLetters>,
    letter_changes: Option<DeadLetters>,
    inbox_operations: Option<InboxOperations>,
    shown: SensitiveFields,
    traces: Option<TraceLink>,
    colour: Colour,
    examiner: Examiner,
    prover: Prover,
    timeout: Duration,
    tokens: Tokens,
    sampler: Sampler,
}

impl fmt::Debug for Dashboard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Dashboard");
        debug.field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl Dashboard {
    /// A dashboard that only reads. The name stands on each page; the store should have a connection whose transactions are read-only.
    pub fn new(name: impl Into<String>, store: impl OutboxAudit) -> Self {
        Self(App {
            name: name.into(),
            program: "outbox".to_owned(),
            base: String::new(),
            outbox: Arc::new(Over(store)),
            changes: None,
            stream: Arc::new(NoStream),
            letters: None,
            letter_changes: None,
            inbox_operations: None,
            shown: SensitiveFields::linked(),
            traces: None,
            colour: Colour::default(),
            examiner: Examiner::default(),
            prover: Prover::default(),
            timeout: TIMEOUT,
            tokens: Tokens::new(),
            sampler: Sampler::default(),
        })
    }

    /// Lets those with the role operator retry, skip, resume, pause and unpause, through this store.
    pub fn with_changes(mut self, store: impl OutboxAudit) -> Self {
        self.0.changes = Some(Arc::new(Over(store)));
        self
    }

    /// Shows where messages are on the stream, and its consumers.
    pub fn with_stream(mut self, stream: impl StreamView) -> Self {
        self.0.stream = Arc::new(stream);
        self
    }

    /// Shows the dead letters of consumers.
    pub fn with_dead_letters(mut self, letters: DeadLetters) -> Self {
        self.0.letters = Some(letters);
        self
    }

    /// Lets those with the role operator retry and discard dead letters of consumers, through this value.
    pub fn with_dead_letter_changes(mut self, letters: DeadLetters) -> Self {
        self.0.letter_changes = Some(letters);
        self
    }

    /// Lists the operations on consumers and their dead letters beside those on the outbox.
    pub fn with_inbox_operations(mut self, operations: InboxOperations) -> Self {
        self.0.inbox_operations = Some(operations);
        self
    }

    /// The events whose payloads are shown, with their sensitive fields masked. Default: those that are linked into the program.
    pub fn with_shown(mut self, shown: SensitiveFields) -> Self {
        self.0.shown = shown;
        self
    }

    /// Links messages to their traces.
    pub fn with_traces(mut self, traces: TraceLink) -> Self {
        self.0.traces = Some(traces);
        self
    }

    /// The colour beside the name on each page, so that nobody takes one outbox for another. Default: [`Colour::Blue`].
    pub fn with_colour(mut self, colour: Colour) -> Self {
        self.0.colour = colour;
        self
    }

    /// What the commands are called that pages name, in a program that mounts them: `shop outbox`. Default: `outbox`.
    pub fn with_program(mut self, name: impl Into<String>) -> Self {
        self.0.program = name.into();
        self
    }

    /// How long an answer of the database is waited for. Default: five seconds. A change is waited for until it ends.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// The path under which a proxy in front of the application shows it, if the proxy takes it off the requests. A path at which the router is nested is
    /// found out by itself.
    pub fn with_base(mut self, path: &str) -> Self {
        self.0.base = path.trim_end_matches('/').to_owned();
        self
    }

    /// The pages. Called within a Tokio runtime, they sample the outbox each ten seconds from now on, whoever looks, until the router is dropped: so
    /// that the charts of the overview have something to show. Otherwise they sample while somebody looks.
    pub fn router(self) -> Router {
        let app = Arc::new(self.0);
        sampler::keep_on(&app);
        Router::new()
            .route("/", get(pages::overview::get))
            .route("/overview.json", get(pages::overview::get))
            .route("/live", get(pages::live::get))
            .route("/messages", get(pages::messages::list))
            .route("/messages.json", get(pages::messages::list))
            .route("/messages/{id}", get(pages::messages::one))
            .route("/aggregate", get(pages::aggregate::get))
            .route("/aggregate.json", get(pages::aggregate::get))
            .route("/timeline", get(pages::timeline::get))
            .route("/timeline.json", get(pages::timeline::get))
            .route("/pauses", get(pages::pauses::get))
            .route("/pauses.json", get(pages::pauses::get))
            .route("/proof", get(pages::proof::get).merge(post(pages::proof::post)))
            .route(
                "/proof.json",
                get(pages::proof::get).merge(post(pages::proof::post)),
            )
            .route("/doctor", get(pages::doctor::get))
            .route("/doctor.json", get(pages::doctor::get))
            .route("/blocked", get(pages::relays::blocked))
            .route("/blocked.json", get(pages::relays::blocked))
            .route("/dead-letters", get(pages::letters::list))
            .route("/dead-letters.json", get(pages::letters::list))
            .route("/dead-letters/{id}", get(pages::letters::one))
            .route(
                "/letter-change",
                get(pages::letter_change::preview).merge(post(pages::letter_change::apply)),
            )
            .route(
                "/letter-change.json",
                get(pages::letter_change::preview).merge(post(pages::letter_change::apply)),
            )
            .route("/consumers", get(pages::consumers::get))
            .route("/consumers.json", get(pages::consumers::get))
            .route("/relays", get(pages::relays::get))
            .route("/relays.json", get(pages::relays::get))
            .route("/audit", get(pages::audit::list))
            .route("/audit.json", get(pages::audit::list))
            .route("/operations/{id}", get(pages::audit::one))
            .route(
                "/change",
                get(pages::change::preview).merge(post(pages::change::apply)),
            )
            .route(
                "/change.json",
                get(pages::change::preview).merge(post(pages::change::apply)),
            )
            .route("/assets/{name}", get(assets::get))
            .fallback(pages::nothing)
            .with_state(app)
            .layer(axum::middleware::from_fn(guard::guard))
    }
}

impl App {
    /// Waits for an answer about the stream within the bound. The error is for people.
    async fn ask_stream<T>(&self, question: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        match tokio::time::timeout(self.timeout, question).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {:?}", self.timeout)),
        }
    }

    /// Waits for an answer within the bound.
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
