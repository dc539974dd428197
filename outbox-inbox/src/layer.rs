//! Middleware: code that runs inside the handler's transaction, after deduplication.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::handler::{BoxFuture, Effect, HandlerContext, HandlerError, Invoke};

/// Code around every run of a handler.
///
/// Functions with this signature implement [`Middleware`]:
///
/// ```
/// use outbox_inbox::{BoxFuture, Effect, HandlerContext, HandlerError, Next};
///
/// fn log_slow<'a>(
///     context: HandlerContext<'a>,
///     next: Next<'a>,
/// ) -> BoxFuture<'a, Result<Effect, HandlerError>> {
///     Box::pin(async move {
///         let started = std::time::Instant::now();
///         let outcome = next.run(context).await;
///         if started.elapsed().as_secs() >= 1 {
///             eprintln!("{} took long", context.message().event_type);
///         }
///         outcome
///     })
/// }
///
/// # fn demo(inbox: outbox_inbox::Inbox<outbox_testing::MemorySubscriber>) {
/// let inbox = inbox.with_middleware(log_slow);
/// # }
/// ```
///
/// An error or a panic of the middleware counts as a handler failure.
pub trait Middleware: Send + Sync + 'static {
    /// Calls `next.run(context)`, or ends the run without the handler. `Ok` commits the
    /// transaction, `Err` rolls it back.
    fn call<'a>(
        &'a self,
        context: HandlerContext<'a>,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<Effect, HandlerError>>;
}

impl<F> Middleware for F
where
    F: for<'a> Fn(HandlerContext<'a>, Next<'a>) -> BoxFuture<'a, Result<Effect, HandlerError>>
        + Send
        + Sync
        + 'static,
{
    fn call<'a>(
        &'a self,
        context: HandlerContext<'a>,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<Effect, HandlerError>> {
        self(context, next)
    }
}

/// The inner middleware and the handler.
#[derive(Clone, Copy)]
pub struct Next<'a> {
    layers: &'a [Arc<dyn Middleware>],
    handler: Invoke,
}

impl<'a> Next<'a> {
    pub(crate) fn new(layers: &'a [Arc<dyn Middleware>], handler: Invoke) -> Self {
        Self { layers, handler }
    }

    /// Runs the next middleware, or the handler.
    pub fn run(self, context: HandlerContext<'a>) -> BoxFuture<'a, Result<Effect, HandlerError>> {
        match self.layers.split_first() {
            Some((layer, layers)) => layer.call(context, Self { layers, ..self }),
            None => (self.handler)(context),
        }
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next")
            .field("layers", &self.layers.len())
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeout(pub(crate) Duration);

#[derive(Debug, thiserror::Error)]
#[error("handler did not finish within {0:?} and was cancelled")]
pub(crate) struct TimedOut(Duration);

impl Timeout {
    pub(crate) async fn call<'a>(
        self,
        context: HandlerContext<'a>,
        next: Next<'a>,
    ) -> Result<Effect, HandlerError> {
        tokio::time::timeout(self.0, next.run(context))
            .await
            .unwrap_or_else(|_| Err(HandlerError::retry(TimedOut(self.0))))
    }
}
