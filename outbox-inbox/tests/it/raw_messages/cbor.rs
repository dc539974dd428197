//! Events in CBOR.

use outbox_core::{Cbor, DomainEvent};
use outbox_inbox::Upcasters;

use super::*;

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "sensor", name = "measured", codec = Cbor)]
struct MeasuredV1 {
    #[domain_event(aggregate_id)]
    sensor: u64,
    celsius: i64,
}

#[derive(DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "sensor", name = "measured", version = 2, codec = Cbor)]
struct Measured {
    #[domain_event(aggregate_id)]
    sensor: u64,
    kelvin: i64,
}

#[idempotent_handler(consumer = "climate", strategy = key(sensor))]
async fn store_measurement(
    event: Event<Measured>,
    message: RawMessage,
    tx: Tx<'_>,
) -> Result<(), HandlerError> {
    assert_eq!((message.event_version, event.kelvin), (2, 300));
    keep(&tx, "climate", &message).await
}

fn upcasters() -> Upcasters {
    Upcasters::new().step(|old: MeasuredV1| Measured {
        sensor: old.sensor,
        kelvin: old.celsius + 273,
    })
}

async fn cbor_events_are_handled_and_upcast_like_json(test: TestDb) {
    tables(&test).await;
    let harness = test.harness(&Script::ok()).with_upcasters(upcasters());
    let new = message(&Measured {
        sensor: 1,
        kelvin: 300,
    });
    let old = message(&MeasuredV1 {
        sensor: 2,
        celsius: 27,
    });
    assert_eq!(
        (new.content_type.as_str(), new.payload[0]),
        ("application/cbor", 0xa2)
    );
    let json = Message {
        content_type: "application/json".to_owned(),
        payload: r#"{"sensor":3,"kelvin":300}"#.into(),
        ..message(&Measured {
            sensor: 3,
            kelvin: 300,
        })
    };
    for message in [&new, &old, &json] {
        for outcome in [Outcome::Handled, Outcome::Duplicate] {
            assert_eq!(
                harness
                    .deliver_message::<store_measurement>(message)
                    .await
                    .unwrap(),
                outcome
            );
        }
    }
    assert_eq!(kept_types(&test, "climate").await.len(), 3);
}

on_every_backend!(cbor_events_are_handled_and_upcast_like_json);
