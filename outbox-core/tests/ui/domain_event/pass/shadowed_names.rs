//! The generated code finds its names whatever the user's module calls by the same ones.

#![allow(dead_code, non_upper_case_globals)]

mod core {}
mod std {}
mod outbox_core {}
trait ToString {}
trait ToAggregateId {}
struct String;
struct Option;
struct EventDescriptor;
const None: () = ();

#[derive(::outbox_core::DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
    #[domain_event(dedup_key)]
    request: u8,
}

#[derive(::outbox_core::DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "order")]
enum OrderEvent {
    #[domain_event(name = "closed")]
    Closed(#[domain_event(aggregate_id)] u64, u8),
}

fn main() {}
