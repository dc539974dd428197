//! The generated code finds its names whatever the user's module calls by the same ones.

#![allow(dead_code, non_upper_case_globals)]

mod core {}
mod std {}
mod outbox_inbox {}
struct Result;
struct Box;
struct Handler;
struct Registration;
struct Strategy;
struct Option;
struct String;
struct Vec;
struct Duration;
trait FromContext {}

#[derive(::outbox_core::DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced(#[domain_event(aggregate_id)] u64);

#[::outbox_inbox::idempotent_handler(
    consumer = "inventory",
    strategy = key(0),
    backoff = "1s..5m"
)]
async fn __a0(
    _event: ::outbox_inbox::Event<OrderPlaced>,
) -> ::std::result::Result<(), ::outbox_inbox::HandlerError> {
    ::core::result::Result::Ok(())
}

#[::outbox_inbox::idempotent_handler(consumer = "billing", strategy = sequence(gap = "1s"))]
async fn write_bill(
    _event: ::outbox_inbox::Event<OrderPlaced>,
) -> ::std::result::Result<(), ::outbox_inbox::HandlerError> {
    ::core::result::Result::Ok(())
}

fn main() {}
