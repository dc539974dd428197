//! The macros of the transactional outbox.
//!
//! Use them through the crates that own their traits: `outbox-core` re-exports [`macro@DomainEvent`], and
//! `outbox-inbox` re-exports [`macro@idempotent_handler`]. Those crates document the keys and hold the examples, where
//! they compile as users write them.
//!
//! Each macro only generates code that a user could write by hand against a documented trait. Generated code has no
//! loops and makes no decisions; the runtime crates have functions for both.
//!
//! Both macros work in the same stages, one file each:
//!
//! 1. `attr` reads the keys as written.
//! 2. `model` turns them into our types.
//! 3. `validate` checks all rules; those of a handler's keys are in `options`.
//! 4. `expand` generates the tokens, or `fallback` the code beside errors, so that no further errors appear.

mod diagnostics;
mod durations;
mod keys;
mod names;
mod runtime;

mod domain_event;
mod idempotent_handler;

use proc_macro::TokenStream;

/// Describes a struct, or each variant of an enum, as a domain event. Documented at `outbox_core::DomainEvent`.
#[proc_macro_derive(DomainEvent, attributes(domain_event))]
pub fn derive_domain_event(input: TokenStream) -> TokenStream {
    domain_event::derive(input.into()).into_tokens().into()
}

/// Registers an `async fn` as the handler of one event. Documented at `outbox_inbox::idempotent_handler`.
#[proc_macro_attribute]
pub fn idempotent_handler(arguments: TokenStream, item: TokenStream) -> TokenStream {
    idempotent_handler::attribute(arguments.into(), item.into())
        .into_tokens()
        .into()
}
