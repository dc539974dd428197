//! The macros of the transactional outbox.
//!
//! Use them through the crates that own their traits: `outbox-core` re-exports [`macro@DomainEvent`], `outbox-inbox` re-exports
//! [`macro@idempotent_handler`], and their examples and keys are documented there, where they compile as users write them.
//!
//! A macro here only writes code that a user could write by hand, in front of a documented trait. Generated code
//! has no loops and takes no decisions; whatever needs one is a function of the runtime crates.
//!
//! Both macros work in the same stages, one file each: `attr` (keys as written) → `model` (our types) → `validate`
//! (all rules; those of a handler's keys are in `options`) → `expand` (tokens), or `fallback` (what is emitted beside
//! errors, so that nothing else turns red).

mod diagnostics;
mod durations;
mod keys;
mod names;
mod runtime;

mod domain_event;
mod idempotent_handler;

#[cfg(test)]
mod golden;

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
