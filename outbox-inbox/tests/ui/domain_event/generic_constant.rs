use outbox_core::DomainEvent;

#[derive(DomainEvent)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced<const N: usize> {
    #[domain_event(aggregate_id)]
    order_id: u64,
    lines: Vec<[u8; N]>,
}

fn main() {}
