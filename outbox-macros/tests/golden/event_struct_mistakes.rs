#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(name = "order.placed")]
struct OrderPlaced {
    order_id: Uuid,
}
