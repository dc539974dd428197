//! Steps, chains of steps, and the problems reported at the start.

use outbox_core::EventDescriptor;
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::tests::HANDLER;

macro_rules! version {
    ($name:ident, $version:literal, $($field:ident: $ty:ty),*) => {
        #[derive(Debug, DomainEvent, Serialize, Deserialize)]
        #[domain_event(aggregate = "order", name = "placed", version = $version)]
        struct $name {
            #[domain_event(aggregate_id)]
            id: u64,
            $($field: $ty),*
        }
    };
}
version!(V1, 1, euros: i64);
version!(V2, 2, cents: i64);
version!(V3, 3, cents: i64, currency: String);
version!(V4, 4, cents: i64, currency: String);

const fn handler(consumer: &'static str, events: &'static [EventDescriptor]) -> Registration {
    Registration {
        consumer,
        events,
        ..HANDLER
    }
}

fn one_to_two() -> Upcasters {
    Upcasters::new().step(|old: V1| V2 {
        id: old.id,
        cents: old.euros * 100,
    })
}

fn three(old: V2) -> V3 {
    V3 {
        id: old.id,
        cents: old.cents,
        currency: "EUR".to_owned(),
    }
}

fn message(payload: &Value) -> Message {
    Message {
        content_type: "application/json".to_owned(),
        payload: serde_json::to_vec(payload).unwrap().into(),
        ..crate::tests::database::message()
    }
}

fn texts(upcasters: &Upcasters, handlers: &[Registration]) -> Vec<String> {
    let problems = upcasters.problems(handlers);
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn steps_are_chained_and_change_nothing_else() {
    let upcasters = one_to_two().step(three);
    let original = message(&json!({"id": 1, "euros": 3}));
    let upcast = upcasters.apply(&original, 3).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&upcast.payload).unwrap(),
        json!({"id": 1, "cents": 300, "currency": "EUR"})
    );
    let expected = Message {
        event_version: 3,
        payload: upcast.payload.clone(),
        ..original.clone()
    };
    assert_eq!(upcast, expected);
    assert_eq!(upcasters.apply(&original, 1).unwrap(), original);
}

#[test]
fn json_steps_mix_with_typed_steps() {
    let upcasters = Upcasters::new()
        .json("order.placed", 1, |payload| {
            let euros = payload["euros"].as_i64().ok_or("no euros")?;
            Ok::<_, &str>(json!({"id": payload["id"], "cents": euros * 100}))
        })
        .step(three);
    assert!(texts(&upcasters, &[handler("books", V3::DESCRIPTORS)]).is_empty());
    let upcast = upcasters
        .apply(&message(&json!({"id": 1, "euros": 3})), 3)
        .unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&upcast.payload).unwrap()["cents"],
        300
    );
    let error = upcasters.apply(&message(&json!({"id": 1})), 3).unwrap_err();
    assert!(error.is_fatal());
    assert_eq!(
        error.to_string(),
        "payload of `order.placed` version 1 cannot be upcast: no euros"
    );
}

#[test]
fn failed_upcast_is_fatal_and_not_quoted() {
    let error = one_to_two()
        .apply(&message(&json!({"id": 1, "euros": "CANARY"})), 2)
        .unwrap_err();
    assert!(error.is_fatal());
    let text = error.to_string();
    assert!(text.contains("invalid type: string, expected i64"), "{text}");
    assert!(!text.contains("CANARY"), "{text}");
    let panics = Upcasters::new().json("order.placed", 1, |mut payload| {
        payload["cents"] = 1.into();
        Ok::<_, BoxError>(payload)
    });
    let error = panics.apply(&message(&json!("CANARY")), 2).unwrap_err();
    assert!(
        error.is_fatal() && error.to_string().ends_with("its upcaster panicked"),
        "{error}"
    );
    let binary = Message {
        content_type: "application/protobuf".to_owned(),
        ..message(&json!(1))
    };
    assert!(one_to_two().apply(&binary, 2).unwrap_err().is_fatal());
    assert!(
        one_to_two()
            .apply(&message(&json!({"id": 1, "euros": 1})), 3)
            .is_err()
    );
}

#[test]
fn the_lowest_handled_version_is_reached() {
    let upcasters = one_to_two().step(three);
    let reaches = |version, handled: &[u32]| {
        let handled: BTreeMap<u32, ()> = handled.iter().map(|version| (*version, ())).collect();
        upcasters.reaches("order.placed", version, &handled)
    };
    assert_eq!(reaches(1, &[3]), Some(3));
    assert_eq!(reaches(1, &[2, 3]), Some(2));
    assert_eq!(reaches(1, &[1, 3]), Some(1));
    assert_eq!(reaches(2, &[1]), None);
    assert_eq!(reaches(1, &[4]), None);
    assert_eq!(reaches(5, &[3]), None);
    let other = upcasters.reaches("order.cancelled", 1, &BTreeMap::from([(3, ())]));
    assert_eq!(other, None);
}

#[test]
fn complete_chains_are_no_problem() {
    let upcasters = one_to_two().step(three);
    let handlers = [
        handler("books", V3::DESCRIPTORS),
        handler("stock", V2::DESCRIPTORS),
    ];
    assert_eq!(texts(&upcasters, &handlers), Vec::<String>::new());
    assert_eq!(texts(&Upcasters::new(), &handlers), Vec::<String>::new());
}

#[test]
fn a_missing_link_is_named() {
    let upcasters = one_to_two().step(|old: V3| V4 {
        id: old.id,
        cents: old.cents,
        currency: old.currency,
    });
    let found = texts(&upcasters, &[handler("books", V4::DESCRIPTORS)]);
    let [text] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert!(
        text.starts_with("upcaster of `order.placed` from version 2 to 3 is missing: there is one from an earlier version ("),
        "{text}"
    );
    assert!(
        text.contains("tests.rs:") && text.contains("`book` (book.rs:7)"),
        "{text}"
    );
}

#[track_caller]
fn problem(upcasters: &Upcasters, handlers: &[Registration], part: &str) {
    let found = texts(upcasters, handlers);
    assert!(found.len() == 1 && found[0].contains(part), "{found:?}");
}

#[test]
fn a_doubled_step_is_named() {
    let upcasters = one_to_two().json("order.placed", 1, Ok::<_, BoxError>);
    let handlers = [handler("books", V2::DESCRIPTORS)];
    problem(&upcasters, &handlers, "has two upcasters from version 1: at ");
}

#[test]
fn step_without_handler_is_named() {
    for handlers in [&[][..], &[handler("books", V1::DESCRIPTORS)]] {
        problem(&one_to_two(), handlers, "leads to no handler");
    }
    let skips = Upcasters::new().step(|old: V1| V3 {
        id: old.id,
        cents: old.euros,
        currency: String::new(),
    });
    let back = Upcasters::new().step(|old: V2| V1 {
        id: old.id,
        euros: old.cents,
    });
    for upcasters in [skips, back] {
        problem(&upcasters, &[handler("books", V3::DESCRIPTORS)], "upcaster at ");
    }
}
