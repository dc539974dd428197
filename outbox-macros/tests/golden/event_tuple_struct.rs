#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "closed", crate = ::my_service::outbox)]
pub struct Closed(#[domain_event(aggregate_id)] u64);
