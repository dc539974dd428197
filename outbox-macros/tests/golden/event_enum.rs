#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", version = 2)]
enum OrderEvent {
    #[domain_event(name = "placed", version = 3)]
    Placed {
        #[domain_event(aggregate_id)]
        order_id: OrderId,
        #[domain_event(dedup_key)]
        request: String,
    },
    #[domain_event(name = "shipped", subject = "audit.shipped", unsequenced)]
    Shipped(String, #[domain_event(aggregate_id, dedup_key)] OrderId),
    #[domain_event(aggregate = "customer", name = "warned")]
    Warned {
        #[domain_event(aggregate_id)]
        r#type: u64,
    },
}
