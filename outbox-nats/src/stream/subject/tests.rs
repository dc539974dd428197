//! Properties of the codec, checked against a reference matcher that shares no code with it.

use bytes::Bytes;
use outbox_core::{Aggregate, Headers, MessageId};

use super::*;

fn message(aggregate_type: &str, id: &str, name: &str) -> Message {
    let message_id = MessageId::fresh();
    Message {
        id: message_id,
        event_id: message_id.into(),
        aggregate: Aggregate::new(aggregate_type, id),
        sequence: Some(1),
        event_type: format!("{aggregate_type}.{name}"),
        event_version: 1,
        subject: None,
        content_type: "application/json".to_owned(),
        payload: Bytes::new(),
        headers: Headers::default(),
        created_at: time::OffsetDateTime::UNIX_EPOCH,
    }
}

const fn event(
    aggregate: &'static str,
    name: &'static str,
    subject: Option<&'static str>,
) -> EventDescriptor {
    EventDescriptor {
        aggregate,
        name,
        version: 1,
        subject,
        sequenced: true,
        rust_type: "Test",
        file: file!(),
        line: line!(),
    }
}

fn odd_ids() -> Vec<String> {
    let odd = [
        "42",
        "a.b",
        ".",
        "..",
        "*",
        ">",
        "a.*.b",
        "a.>",
        "ü",
        " ",
        "\t",
        "\r\n",
        "\0",
        "%",
        "%%",
        "%2E",
        "%2",
        "$JS",
        "$JS.API.STREAM.PURGE.X",
        "🦀",
        "\u{200d}",
        "\u{feff}",
        "\u{a0}",
        "\u{2028}",
        "\u{7f}",
        "'; DROP TABLE",
        "a/b\\c",
        "ÀÉ",
        "日本",
    ];
    let mut ids: Vec<String> = odd.iter().map(|id| (*id).to_owned()).collect();
    ids.extend([
        String::new(),
        "ü".repeat(255),
        "🦀".repeat(255),
        "x".repeat(255),
        ".".repeat(255),
    ]);
    ids.extend((0..0x250_u32).filter_map(char::from_u32).map(String::from));
    ids.extend(
        odd.iter()
            .flat_map(|a| odd.iter().map(move |b| format!("{a}{b}"))),
    );
    ids
}

fn matches(filter: &[&str], subject: &[&str]) -> bool {
    match (filter, subject) {
        ([], []) => true,
        ([">"], [_, ..]) => true,
        ([first, filter @ ..], [token, subject @ ..]) => {
            (*first == "*" || first == token) && matches(filter, subject)
        }
        _ => false,
    }
}

fn is_match(filter: &str, subject: &str) -> bool {
    matches(
        &filter.split('.').collect::<Vec<_>>(),
        &subject.split('.').collect::<Vec<_>>(),
    )
}

#[test]
fn any_aggregate_id_round_trips_as_one_token() {
    for id in odd_ids() {
        let subject = SubjectPrefix::default()
            .subject(&message("order", &id, "placed"))
            .unwrap();
        assert!(!subject.contains(['*', '>', '$', ' ']), "{id:?} -> {subject}");
        assert!(
            subject.bytes().all(|byte| byte.is_ascii_graphic()),
            "{id:?} -> {subject}"
        );
        let tokens: Vec<&str> = subject.split('.').collect();
        assert_eq!(tokens.len(), 4, "{id:?} -> {subject}");
        assert!(
            tokens.iter().all(|token| !token.is_empty()),
            "{id:?} -> {subject}"
        );
        assert_eq!(decode_token(tokens[2]).as_deref(), Some(id.as_str()));
        assert!(subject.len() < 3_400, "{id:?}: {} bytes", subject.len());
    }
}

#[test]
fn foreign_tokens_are_not_decoded() {
    for token in ["", "a.b", "%2", "%2e", "%zz", "%C3", "ü", "a b", "*", "a%"] {
        assert_eq!(decode_token(token), None, "{token:?}");
    }
}

#[test]
fn filters_select_their_event_and_no_other() {
    let prefix = SubjectPrefix::new("shop.events").unwrap();
    let placed = prefix.filter(&event("order", "placed", None));
    assert_eq!(placed, "shop.events.order.*.placed");
    for id in odd_ids() {
        let subject = |aggregate, name| prefix.subject(&message(aggregate, &id, name)).unwrap();
        assert!(is_match(&placed, &subject("order", "placed")), "{id:?}");
        assert!(
            is_match(&prefix.wildcard(), &subject("order", "placed")),
            "{id:?}"
        );
        assert!(!is_match(&placed, &subject("order", "shipped")), "{id:?}");
        assert!(!is_match(&placed, &subject("basket", "placed")), "{id:?}");
    }
}

#[test]
fn harmful_fixed_subject_is_refused() {
    for subject in [
        "",
        "$JS.API.STREAM.PURGE.EVENTS",
        "a.*",
        "a.>",
        "a b",
        "a..b",
        ".a",
        "a.",
        "a\n",
        "a\0",
    ] {
        let mut changed = message("order", "42", "placed");
        changed.subject = Some(subject.to_owned());
        let refused = SubjectPrefix::default().subject(&changed);
        assert!(
            matches!(refused, Err(SubjectError::Override { .. })),
            "{subject:?}"
        );
    }
}

#[test]
fn malformed_prefixes_are_refused() {
    for prefix in [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "*",
        "a.>",
        "$JS",
        "a b",
        "ü",
        "a%",
        &"x".repeat(129),
    ] {
        assert!(
            matches!(SubjectPrefix::new(prefix), Err(SubjectError::Prefix { .. })),
            "{prefix:?}"
        );
    }
    for prefix in ["events", "a.b-c.d_1", &"x".repeat(128)] {
        assert_eq!(SubjectPrefix::new(prefix).unwrap().as_str(), prefix);
    }
}

#[test]
fn covering_follows_the_subject_rules() {
    for (wide, narrow, expected) in [
        ("events.>", "events.order.*.placed", true),
        (">", "a", true),
        (">", ">", true),
        ("a.>", "a", false),
        ("a.*", "a.b", true),
        ("a.*", "a.*", true),
        ("a.*", "a.>", false),
        ("a.b", "a.*", false),
        ("a.b", "a.b", true),
        ("a.b", "a.b.c", false),
        ("a.b.c", "a.b", false),
        ("events.order.*.placed", "events.order.7.placed", true),
        ("events.order.*.placed", "events.order.7.shipped", false),
    ] {
        assert_eq!(covers(wide, narrow), expected, "{wide} covers {narrow}");
    }
}

#[test]
fn filters_of_several_events_do_not_overlap() {
    let stream = crate::EventStream::default();
    let events = [
        event("order", "placed", None),
        event("order", "placed", None), // Another version of the payload.
        event("order", "express", Some("events.order.all.placed")),
        event("order", "shipped", Some("legacy.shipped")),
    ];
    assert_eq!(
        stream.consumer_filters(&events, false),
        ["events.order.*.placed", "legacy.shipped"]
    );
}

#[test]
fn narrowest_filter_covers_several_events() {
    for (patterns, expected) in [
        (&[][..], None),
        (&["events.order.*.placed"][..], Some("events.order.*.placed")),
        (
            &["events.order.*.placed", "events.order.*.shipped"],
            Some("events.order.*.*"),
        ),
        (
            &["events.order.*.placed", "events.basket.*.placed"],
            Some("events.*.*.placed"),
        ),
        (
            &["events.order.*.placed", "events.basket.*.dropped"],
            Some("events.*.*.*"),
        ),
        (
            &["events.order.*.placed", "events.order.total"],
            Some("events.order.>"),
        ),
        (&["events.order.*.placed", "legacy.shipped"], Some("*.>")),
        (&["events.order.*.placed", "shipped"], Some(">")),
        (
            &["events.order.>", "events.order.*.placed"],
            Some("events.order.>"),
        ),
        (&["a.>", "a.b"], Some("a.>")),
        (&["a.b.>", "a.b"], Some("a.>")),
    ] {
        let cover = narrowest_cover(patterns.iter().copied());
        assert_eq!(cover.as_deref(), expected, "{patterns:?}");
        for pattern in patterns {
            assert!(
                covers(cover.as_deref().unwrap(), pattern),
                "{cover:?} covers {pattern}"
            );
        }
    }
}

#[test]
fn message_is_on_default_subjects_in_every_layout() {
    let prefix = SubjectPrefix::new("shop.events").unwrap();
    for id in ["1", "a.b *", "", "shard-7", "ü"] {
        let message = message("order", id, "placed");
        let token = encode_token(id);
        let own = [
            prefix.subject(&message).unwrap(),
            prefix.aggregate_subject(&message.aggregate),
            prefix.subject_at(&message, &shard_token(&message.aggregate, 1_000)),
        ];
        for subject in &own {
            assert!(prefix.is_default(&message, subject), "{subject}");
            assert!(!prefix.is_of_others(&message, subject), "{subject}");
            assert!(covers("shop.events.order.>", subject), "{subject}");
        }
        for foreign in [
            format!("shop.events.cart.{token}.placed"),
            format!("shop.events.order.{token}.paid"),
            format!("shop.events.order.other-{token}.placed"),
            format!("shop.events.order.{token}.placed.more"),
            format!("events.order.{token}.placed"),
            format!("shop.eventsorder.{token}.placed"),
            "shop.events.order.shard-.placed".to_owned(),
            "shop.events.order.shard-7".to_owned() + "x",
            "shop.events.order".to_owned(),
            "shop.events".to_owned(),
            String::new(),
        ] {
            assert!(!prefix.is_default(&message, &foreign), "{foreign}");
        }
        assert!(prefix.is_of_others(&message, "shop.events.cart.1.added"));
        assert!(prefix.is_of_others(&message, "shop.events.cart.1"));
        assert!(!prefix.is_of_others(&message, "legacy.cart.1.added"));
        let mixed = Message {
            aggregate: Aggregate::new("cart", id),
            ..message.clone()
        };
        let subject = format!("shop.events.cart.{token}.placed");
        assert!(
            !prefix.is_default(&mixed, &subject),
            "the handler belongs to orders"
        );
        let unsequenced = Message {
            sequence: None,
            ..message
        };
        assert!(
            !prefix.is_default(&unsequenced, &own[1]),
            "an unsequenced message is never fenced"
        );
    }
}

#[test]
fn selections_are_filters_of_every_layout() {
    let prefix = SubjectPrefix::new("shop.events").unwrap();
    let orders = EventDescriptor::of_aggregate("order");
    assert_eq!(prefix.filter(&orders), "shop.events.order.*.*");
    assert_eq!(
        prefix.fenced_filter(&orders).as_deref(),
        Some("shop.events.order.*")
    );
    let placed = EventDescriptor::of_type("order", "placed");
    assert_eq!(prefix.filter(&placed), "shop.events.order.*.placed");
    assert_eq!(prefix.filter(&EventDescriptor::EVERYTHING), ">");
}

#[test]
fn patterns_overlap_where_a_subject_matches_both() {
    for (one, other) in [
        ("a.*.c", "a.b.*"),
        ("a.>", "a.b"),
        ("*.b", "a.>"),
        (">", "a"),
        ("a.b", "a.b"),
    ] {
        assert!(overlap(one, other) && overlap(other, one), "{one} {other}");
    }
    for (one, other) in [("a.b", "a.c"), ("a.*", "a.b.c"), ("a.>", "a"), ("a.*.c", "b.>")] {
        assert!(!overlap(one, other) && !overlap(other, one), "{one} {other}");
    }
}
