#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "customer", name = "registered")]
#[serde(rename_all = "camelCase")]
struct CustomerRegistered {
    #[domain_event(aggregate_id)]
    customer_id: Uuid,
    #[domain_event(sensitive)]
    ship_to: Address,
    #[domain_event(sensitive)]
    #[serde(alias = "mail")]
    email: String,
}
