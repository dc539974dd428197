//! A message with its handler, which may be called with it.
//!
//! Invariant: code of the application that is asked on the way (an upcaster, a business key) fails as a handler does, also by a panic. Not here: whether the
//! message may take effect ([`crate::dedup::claim`]).

use std::sync::Arc;

use outbox_core::Message;
use uuid::Uuid;

use super::consumer::Consumer;
use crate::dedup::claim::Claimant;
use crate::dedup::key;
use crate::handler::{HandlerError, Registration, Strategy};
use crate::panics::guard;

/// A message that its handler may be called with.
pub(super) struct Ready<'a> {
    pub(super) handler: &'a Registration,
    /// What the handler is given: the message, in the version that it takes.
    pub(super) input: Arc<Message>,
    /// Under which key the message takes effect.
    pub(super) claimant: Claimant<'a>,
}

impl Consumer {
    /// Turns a message into what its handler is given. `upcast_to`: the version that the handler takes, if it is another one.
    pub(super) fn ready<'a>(
        &'a self,
        message: &'a Arc<Message>,
        source: &'a str,
        handler: &'a Registration,
        upcast_to: Option<u32>,
    ) -> Result<Ready<'a>, HandlerError> {
        let input = match upcast_to {
            Some(version) => Arc::new(guard("upcaster", || {
                self.shared.upcasters.apply(message, version)
            })??),
            None => message.clone(),
        };
        let strategy = handler.options.strategy;
        if matches!(strategy, Strategy::Sequence { .. }) && message.sequence.is_none() {
            return Err(HandlerError::fatal(
                "the message has no sequence number, which strategy `sequence` needs; its event was `unsequenced` when it was recorded",
            ));
        }
        let id = match strategy {
            Strategy::Key(key_of) => key::id(&guard("business key", || key_of(&input))??),
            _ => message.event_id.as_uuid(),
        };
        Ok(Ready {
            handler,
            input,
            claimant: self.claimant(message, source, strategy, id),
        })
    }

    pub(super) fn claimant<'a>(
        &'a self,
        message: &'a Message,
        source: &'a str,
        strategy: Strategy,
        id: Uuid,
    ) -> Claimant<'a> {
        Claimant {
            sql: &self.shared.sql,
            consumer: self.name,
            message,
            source,
            strategy,
            id,
        }
    }
}
