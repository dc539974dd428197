//! Tests of the catalogue of event types.

use outbox_core::{Catalogue, CatalogueError, DomainEvent, EventDescriptor};

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "parcel", name = "sent", version = 3)]
struct ParcelSent {
    #[domain_event(aggregate_id)]
    parcel: u32,
}

#[test]
fn catalogue_lists_derived_events() {
    let catalogue = Catalogue::linked().unwrap();
    let found = catalogue
        .iter()
        .find(|descriptor| descriptor.event_type() == "parcel.sent")
        .unwrap();
    assert_eq!((found.version, found.subject, found.sequenced), (3, None, true));
    assert!(
        found.rust_type.ends_with("::ParcelSent") && found.file.ends_with("catalogue.rs"),
        "{found:?}"
    );
    assert_eq!(ParcelSent { parcel: 7 }.aggregate_id().as_str(), "7");
}

#[test]
fn two_types_for_one_event_are_rejected_with_both_places() {
    const fn descriptor(rust_type: &'static str, file: &'static str, line: u32) -> EventDescriptor {
        EventDescriptor {
            aggregate: "order",
            name: "placed",
            version: 1,
            subject: None,
            sequenced: true,
            rust_type,
            file,
            line,
        }
    }
    static FIRST: EventDescriptor = descriptor("a::Placed", "a.rs", 7);
    static SECOND: EventDescriptor = descriptor("b::OrderPlaced", "b.rs", 3);
    for order in [[&FIRST, &SECOND], [&SECOND, &FIRST]] {
        let error = Catalogue::from_descriptors(order).unwrap_err();
        let CatalogueError::Duplicate { first, second } = &error else {
            panic!("{error:?}")
        };
        assert_eq!((*first, *second), (&FIRST, &SECOND));
        assert_eq!(
            error.to_string(),
            "event `order.placed` version 1 is described twice: a::Placed (a.rs:7) and b::OrderPlaced (b.rs:3); \
             give one of them another `name` or `version`"
        );
    }
}
