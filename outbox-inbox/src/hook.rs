//! Calls the application's hooks after a handler's transaction has committed.

use std::sync::Arc;

use outbox_core::{Incoming, Message};

use crate::panics::{Panicked, guard};

/// A message was handled.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Handled<'a> {
    /// Name of the consumer.
    pub consumer: &'a str,
    /// The message.
    pub message: &'a Message,
}

/// A message was dead-lettered.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct DeadDelivery<'a> {
    /// Name of the consumer.
    pub consumer: &'a str,
    /// The delivery.
    pub incoming: &'a Incoming,
    /// The message; `None` if the delivery is no outbox message.
    pub message: Option<&'a Message>,
    /// The error, at most 1,000 characters.
    pub error: &'a str,
    /// Failed attempts; 0 if no handler ran.
    pub attempts: u32,
}

type OnHandled = Arc<dyn Fn(Handled<'_>) + Send + Sync>;
type OnDeadLetter = Arc<dyn Fn(DeadDelivery<'_>) + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) on_handled: Option<OnHandled>,
    pub(crate) on_dead_letter: Option<OnDeadLetter>,
}

impl Hooks {
    pub(crate) fn handled(&self, handled: Handled<'_>) {
        if let Some(hook) = &self.on_handled {
            let told = guard("on_handled", || hook(handled));
            log(handled.consumer, told);
        }
    }

    pub(crate) fn dead_letter(&self, dead: DeadDelivery<'_>) {
        if let Some(hook) = &self.on_dead_letter {
            let told = guard("on_dead_letter", || hook(dead));
            log(dead.consumer, told);
        }
    }
}

fn log(consumer: &str, told: Result<(), Panicked>) {
    if let Err(error) = told {
        tracing::error!(consumer, %error, "a hook of the application panicked");
    }
}
