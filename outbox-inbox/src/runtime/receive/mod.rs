//! Receives deliveries and retried dead letters, and keeps them until they are acknowledged.

pub(crate) mod dead_letters;
pub(crate) mod origin;
pub(crate) mod pause;
pub(crate) mod receiver;
pub(crate) mod unanswered;
