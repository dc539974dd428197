use outbox_core::DomainEvent;

#[derive(DomainEvent)]
#[domain_event(aggregate = "order", name = "placed")]
union OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: u64,
    total_cents: i64,
}

fn main() {}
