//! The macros of the transactional outbox, re-exported and documented by the crates with their
//! traits: [`macro@DomainEvent`] by `outbox-core`, [`macro@idempotent_handler`] by `outbox-inbox`.
//!
//! Invariant: macros generate only code that a user could write against a documented trait, without
//! loops or decisions.
//!
//! Stages of both macros, one file each:
//!
//! 1. `attr` reads the keys.
//! 2. `model` has the item as types.
//! 3. `validate` checks the rules that concern more than one key.
//! 4. `expand` generates the code.

mod diagnostics;
mod durations;
mod keys;
mod names;
mod runtime;

mod domain_event;
mod idempotent_handler;

use proc_macro::TokenStream;

/// Describes a struct, or each variant of an enum, as a domain event. Documented at
/// `outbox_core::DomainEvent`.
#[proc_macro_derive(DomainEvent, attributes(domain_event))]
pub fn derive_domain_event(input: TokenStream) -> TokenStream {
    domain_event::derive(input.into()).into_tokens().into()
}

/// Registers an `async fn` as the handler of one event. Documented at
/// `outbox_inbox::idempotent_handler`.
#[proc_macro_attribute]
pub fn idempotent_handler(arguments: TokenStream, item: TokenStream) -> TokenStream {
    idempotent_handler::attribute(arguments.into(), item.into())
        .into_tokens()
        .into()
}
