use outbox_core::DomainEvent;
use serde::Serialize;

#[derive(DomainEvent, Serialize)]
#[domain_event(aggregate = "clock", name = "ticked")]
struct Ticked;

fn main() {}
