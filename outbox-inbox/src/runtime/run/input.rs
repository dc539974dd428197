//! A message as its handler takes it.
//!
//! Invariant: code of the application that runs here (an upcaster, a business key) fails as a
//! handler does, also by a panic. Not here: whether the message may take effect
//! ([`crate::dedup::claim`]).

use std::sync::Arc;

use outbox_core::Message;

use crate::dedup::claim::Claimant;
use crate::dedup::key;
use crate::handler::{HandlerError, Registration, Strategy};
use crate::panics::guard;
use crate::runtime::consumer::Consumer;

/// A message that its handler can be called with.
pub(crate) struct Input<'a> {
    pub(crate) handler: &'a Registration,
    /// The message, in the version that the handler takes.
    pub(crate) message: Arc<Message>,
    /// The key under which the message takes effect.
    pub(crate) claimant: Claimant<'a>,
}

impl<'a> Input<'a> {
    /// `upcast_to`: the version that the handler takes, if it is another one.
    pub(crate) fn new(
        consumer: &'a Consumer,
        message: &'a Arc<Message>,
        source: &'a str,
        handler: &'a Registration,
        upcast_to: Option<u32>,
    ) -> Result<Self, HandlerError> {
        let input = match upcast_to {
            Some(version) => Arc::new(guard("upcaster", || {
                consumer.shared.services.upcasters.apply(message, version)
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
        Ok(Self {
            handler,
            message: input,
            claimant: consumer.claimant(message, source, strategy, id),
        })
    }
}
