#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "sensor", name = "measured", codec = outbox_core::Cbor)]
struct Measured {
    #[domain_event(aggregate_id)]
    sensor: u32,
    values: Vec<f32>,
}
