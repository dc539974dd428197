#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 1)]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: Uuid,
    #[domain_event(dedup_key)]
    request: String,
    total_cents: i64,
}
