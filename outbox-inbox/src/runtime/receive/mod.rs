//! Receives deliveries and dead letters that are retried, and keeps them until the broker has an
//! answer.

pub(crate) mod dead_letters;
pub(crate) mod origin;
pub(crate) mod pause;
pub(crate) mod receiver;
pub(crate) mod unanswered;
