//! Tests of the derive's rules. `outbox-inbox/tests/ui` tests wording and position of errors.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};

use super::model::{Declaration, EventType};
use super::{derive, validate};
use crate::diagnostics::Diagnostics;

mod sensitive;

#[track_caller]
fn check(item: TokenStream, expected: &[&str]) {
    let errors = derive(item).errors;
    let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let wrong: Vec<&str> = messages
        .iter()
        .filter_map(|message| message.lines().next())
        .collect();
    assert_eq!(wrong, expected);
    for message in &messages {
        assert_eq!(
            message.matches("\nnote: ").count(),
            1,
            "one thing to type per mistake: {message}"
        );
    }
}

fn event_type(item: TokenStream) -> EventType {
    let diagnostics = Diagnostics::new();
    let declaration = Declaration::read(syn::parse2(item).expect("an item"), &diagnostics);
    let event_type = validate::validate(&declaration, &diagnostics);
    assert!(diagnostics.finish().is_empty());
    event_type.expect("no mistake was reported")
}

#[test]
fn a_struct_is_one_event() {
    let placed = event_type(quote! {
        #[domain_event(aggregate = "order", name = "placed")]
        struct OrderPlaced { total: i64, #[domain_event(aggregate_id)] order_id: Uuid }
    });
    assert!(!placed.is_enum);
    assert_eq!(placed.crate_path.to_token_stream().to_string(), ":: outbox_core");
    let [event] = &placed.events[..] else {
        panic!("a struct is one event")
    };
    assert_eq!(event.ident, "OrderPlaced");
    assert_eq!(
        (event.aggregate.value(), event.name.value()),
        ("order".to_owned(), "placed".to_owned())
    );
    assert_eq!(event.version, 1);
    assert!(event.sequenced && event.subject.is_none() && event.dedup_key.is_none());
    assert_eq!(
        event.aggregate_id.member.to_token_stream().to_string(),
        "order_id"
    );
    assert_eq!(event.aggregate_id.ty.to_token_stream().to_string(), "Uuid");
}

#[test]
fn keys_may_be_spread_over_attributes() {
    let event_type = event_type(quote! {
        #[domain_event(aggregate = "order", unsequenced)]
        #[domain_event(name = "placed", version = 7u32, subject = "audit.orders", crate = crate::outbox)]
        struct OrderPlaced(u8, #[domain_event(aggregate_id)] #[domain_event(dedup_key)] u64);
    });
    assert_eq!(
        event_type.crate_path.to_token_stream().to_string(),
        "crate :: outbox"
    );
    let event = &event_type.events[0];
    assert_eq!(event.version, 7);
    assert!(!event.sequenced);
    assert_eq!(
        event.subject.as_ref().map(syn::LitStr::value).as_deref(),
        Some("audit.orders")
    );
    assert_eq!(event.aggregate_id.member.to_token_stream().to_string(), "1");
    let dedup_key = event.dedup_key.as_ref().expect("it has one");
    assert_eq!(dedup_key.member.to_token_stream().to_string(), "1");
}

#[test]
fn variants_inherit_from_the_enum_and_override_it() {
    let event_type = event_type(quote! {
        #[domain_event(aggregate = "order", version = 2)]
        enum OrderEvent {
            #[domain_event(name = "placed")]
            Placed { #[domain_event(aggregate_id)] id: u64 },
            #[domain_event(name = "warned", aggregate = "customer", version = 3, unsequenced)]
            Warned(#[domain_event(aggregate_id)] u64),
        }
    });
    let facts: Vec<_> = event_type
        .events
        .iter()
        .map(|event| {
            (
                event.aggregate.value(),
                event.name.value(),
                event.version,
                event.sequenced,
            )
        })
        .collect();
    assert_eq!(
        facts,
        [
            ("order".into(), "placed".into(), 2, true),
            ("customer".into(), "warned".into(), 3, false)
        ]
    );
}

#[test]
fn an_unsequenced_enum_has_unsequenced_variants() {
    let event_type = event_type(quote! {
        #[domain_event(aggregate = "order", unsequenced)]
        enum OrderEvent {
            #[domain_event(name = "seen")]
            Seen(#[domain_event(aggregate_id)] u64),
        }
    });
    assert!(!event_type.events[0].sequenced);
}

#[test]
fn missing_required_keys_are_reported() {
    check(
        quote! { struct OrderPlaced { total: i64 } },
        &[
            "`OrderPlaced` has no aggregate type",
            "event `OrderPlaced` has no name; a stored event needs a name that survives renaming this type",
            "event `OrderPlaced` has no aggregate id, so it cannot be put in order",
        ],
    );
    // A missing aggregate on the enum and on all variants is one mistake.
    check(
        quote! {
            enum OrderEvent {
                #[domain_event(name = "placed")]
                Placed(#[domain_event(aggregate_id)] u64),
                #[domain_event(name = "closed")]
                Closed(#[domain_event(aggregate_id)] u64),
            }
        },
        &["`OrderEvent` has no aggregate type"],
    );
}

#[test]
fn suggestions_use_the_declared_names() {
    let expansion = derive(quote! {
        #[domain_event(aggregate = "order")]
        struct OrderPlaced { total: i64, customer_id: u64 }
    });
    let messages: Vec<String> = expansion.errors.iter().map(ToString::to_string).collect();
    assert!(
        messages[0].ends_with("add `#[domain_event(name = \"placed\")]` above it"),
        "{}",
        messages[0]
    );
    assert!(
        messages[1].ends_with("for example `customer_id`"),
        "{}",
        messages[1]
    );
}

#[test]
fn versions_start_at_one_and_fit_the_column() {
    for version in [
        quote!(0),
        quote!(-1),
        quote!(4294967296),
        quote!(1u64),
        quote!(1i32),
    ] {
        check(
            quote! {
                #[domain_event(aggregate = "order", name = "placed", version = #version)]
                struct OrderPlaced(#[domain_event(aggregate_id)] u64);
            },
            &["`version` is a number from 1 to 4294967295, without a suffix"],
        );
    }
    for version in [quote!("1"), quote!(1.0), quote!(VERSION), quote!(1 + 1)] {
        check(
            quote! {
                #[domain_event(aggregate = "order", name = "placed", version = #version)]
                struct OrderPlaced(#[domain_event(aggregate_id)] u64);
            },
            &["`version` takes a whole number without quotes"],
        );
    }
}

#[test]
fn enum_default_is_checked_once() {
    check(
        quote! {
            #[domain_event(aggregate = "order.eu", version = 0)]
            enum OrderEvent {
                #[domain_event(name = "placed")]
                Placed(#[domain_event(aggregate_id)] u64),
                #[domain_event(name = "closed")]
                Closed(#[domain_event(aggregate_id)] u64),
            }
        },
        &[
            "`aggregate` contains a dot, and dots separate the tokens of a subject",
            "`version` is a number from 1 to 4294967295, without a suffix",
        ],
    );
}

#[test]
fn misplaced_key_is_reported_once_with_its_place() {
    check(
        quote! {
            #[domain_event(aggregate_id, dedup_key, name = "placed")]
            struct OrderPlaced(#[domain_event(aggregate = "order", version = 1, crate = a)] u64);
        },
        &[
            "`aggregate_id` belongs on the field that identifies the aggregate, not on the struct",
            "`dedup_key` belongs on the field that must not be recorded twice, not on the struct",
            "`aggregate` belongs on the struct, not on a field",
            "`version` belongs on the struct, not on a field",
            "`crate` belongs on the struct, not on a field",
        ],
    );
    check(
        quote! {
            #[domain_event(name = "placed", subject = "orders")]
            enum OrderEvent {
                #[domain_event(crate = a, aggregate_id)]
                Placed(#[domain_event(unsequenced, subject = "a", aggregate = "order")] u64),
            }
        },
        &[
            "`name` belongs on each variant, not on the enum",
            "`subject` belongs on each variant, not on the enum",
            "`crate` belongs on the enum, not on a variant",
            "`aggregate_id` belongs on the field that identifies the aggregate, not on a variant",
            "`unsequenced` belongs on the enum, not on a field",
            "`subject` belongs on each variant, not on a field",
            "`aggregate` belongs on the enum, not on a field",
        ],
    );
}

#[test]
fn misspelt_key_is_one_mistake() {
    check(
        quote! {
            #[domain_event(aggregat = "order", name = "placed")]
            struct OrderPlaced(#[domain_event(aggregate_di)] u64);
        },
        &["unknown key `aggregat`", "unknown key `aggregate_di`"],
    );
    check(
        quote! {
            #[domain_event]
            struct OrderPlaced(#[domain_event = "aggregate_id"] u64);
        },
        &[
            "`domain_event` takes keys in parentheses",
            "`domain_event` takes keys in parentheses",
        ],
    );
}

#[test]
fn a_key_is_written_once() {
    check(
        quote! {
            #[domain_event(aggregate = "order", name = "placed", unsequenced, unsequenced)]
            #[domain_event(aggregate = "order")]
            struct OrderPlaced(#[domain_event(aggregate_id, aggregate_id)] u64);
        },
        &[
            "`unsequenced` is written twice",
            "`aggregate` is written twice",
            "`aggregate_id` is written twice",
        ],
    );
}

#[test]
fn a_role_has_one_field() {
    check(
        quote! {
            #[domain_event(aggregate = "order", name = "placed")]
            struct OrderPlaced {
                #[domain_event(aggregate_id, dedup_key)] a: u64,
                #[domain_event(aggregate_id)] b: u64,
                #[domain_event(dedup_key)] c: u64,
            }
        },
        &[
            "event `OrderPlaced` has a second `aggregate_id`",
            "event `OrderPlaced` has a second `dedup_key`",
        ],
    );
}

#[test]
fn unsupported_shapes_are_rejected() {
    let attribute = quote!(#[domain_event(aggregate = "order", name = "placed")]);
    for shape in [
        quote!(
            struct Placed;
        ),
        quote!(
            struct Placed {}
        ),
        quote!(
            struct Placed();
        ),
    ] {
        check(
            quote!(#attribute #shape),
            &["event `Placed` has no fields, so nothing can identify its aggregate"],
        );
    }
    check(
        quote!(#attribute union Placed { a: u64 }),
        &["union `Placed` cannot be an event: its active field is unknown"],
    );
    check(
        quote!(
            #[domain_event(aggregate = "order")]
            enum Placed {}
        ),
        &["enum `Placed` has no variants, so it describes no event"],
    );
    for parameters in [quote!(<T>), quote!(<const N: usize>), quote!(<'a, T>)] {
        check(
            quote!(#attribute struct Placed #parameters (#[domain_event(aggregate_id)] u64);),
            &["event `Placed` is generic, but a stored name identifies one type"],
        );
    }
    check(
        quote!(#attribute struct Placed<'a>(#[domain_event(aggregate_id)] &'a str);),
        &["event `Placed` borrows data, but a stored event outlives the data"],
    );
}

#[test]
fn events_of_an_enum_must_be_distinct() {
    check(
        quote! {
            #[domain_event(aggregate = "order")]
            enum OrderEvent {
                #[domain_event(name = "placed")]
                Placed(#[domain_event(aggregate_id)] u64),
                #[domain_event(name = "placed", version = 2)]
                OtherVersion(#[domain_event(aggregate_id)] u64),
                #[domain_event(name = "placed", aggregate = "bet")]
                OtherAggregate(#[domain_event(aggregate_id)] u64),
                #[domain_event(name = "placed", version = 1)]
                Again(#[domain_event(aggregate_id)] u64),
            }
        },
        &["`Again` would be stored as `order.placed` version 1, as `Placed` is"],
    );
}

#[test]
fn fallback_code_is_emitted_where_possible() {
    for (item, expected) in [
        (
            quote!(
                struct Placed {
                    id: u64,
                }
            ),
            true,
        ),
        (
            quote!(
                enum Placed {}
            ),
            true,
        ),
        (
            quote!(
                struct Placed<T>(T);
            ),
            false,
        ),
        (quote!(union Placed { id: u64 }), false),
    ] {
        let expansion = derive(item.clone());
        assert!(!expansion.errors.is_empty());
        assert_eq!(!expansion.tokens.is_empty(), expected, "{item}");
    }
}
