//! Tests of the derive's rules. `outbox-inbox/tests/ui` tests wording and position of errors.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};

use super::model::{Declaration, Event};
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

fn events(item: TokenStream) -> Vec<Event> {
    let diagnostics = Diagnostics::default();
    let declaration = Declaration::read(item, &diagnostics).expect("an event");
    let events = validate::events(&declaration, &diagnostics);
    assert!(diagnostics.is_empty());
    events.expect("no mistake was reported")
}

#[test]
fn keys_of_a_struct_are_read() {
    let item = quote! {
        #[domain_event(aggregate = "order", unsequenced)]
        #[domain_event(name = "placed", version = 7u32, subject = "audit.orders", crate = crate::outbox)]
        struct OrderPlaced(u8, #[domain_event(aggregate_id)] #[domain_event(dedup_key)] u64);
    };
    let declaration = Declaration::read(item.clone(), &Diagnostics::default()).expect("an event");
    let path = declaration.crate_path.to_token_stream().to_string();
    assert_eq!((path.as_str(), declaration.is_enum), ("crate :: outbox", false));
    let [event] = &events(item)[..] else {
        panic!("a struct is one event")
    };
    assert_eq!((event.version, event.sequenced), (7, false));
    let subject = event.subject.as_ref().map(syn::LitStr::value);
    assert_eq!(subject.as_deref(), Some("audit.orders"));
    for field in [Some(&event.aggregate_id), event.dedup_key.as_ref()] {
        let field = field.expect("it has one");
        assert_eq!(field.member.to_token_stream().to_string(), "1");
        assert_eq!(field.ty.to_token_stream().to_string(), "u64");
    }
}

#[test]
fn variants_inherit_from_the_enum_and_override_it() {
    let events = events(quote! {
        #[domain_event(aggregate = "order", version = 2)]
        enum OrderEvent {
            #[domain_event(name = "placed")]
            Placed { #[domain_event(aggregate_id)] id: u64 },
            #[domain_event(name = "warned", aggregate = "customer", version = 3, unsequenced)]
            Warned(#[domain_event(aggregate_id)] u64),
        }
    });
    let facts = events.iter().map(|event| {
        let names = (event.aggregate.value(), event.name.value());
        (names, event.version, event.sequenced)
    });
    let names = |aggregate: &str, name: &str| (aggregate.to_owned(), name.to_owned());
    assert_eq!(
        facts.collect::<Vec<_>>(),
        [
            (names("order", "placed"), 2, true),
            (names("customer", "warned"), 3, false)
        ]
    );
}

#[test]
fn an_unsequenced_enum_has_unsequenced_variants() {
    let events = events(quote! {
        #[domain_event(aggregate = "order", unsequenced)]
        enum OrderEvent {
            #[domain_event(name = "seen")]
            Seen(#[domain_event(aggregate_id)] u64),
        }
    });
    assert!(!events[0].sequenced);
}

#[test]
fn missing_required_keys_are_reported() {
    check(
        quote! { struct OrderPlaced { total: i64 } },
        &[
            "`OrderPlaced` has no aggregate type",
            "event `OrderPlaced` has no name; a stored event needs a name that survives renaming",
            "event `OrderPlaced` has no aggregate id, so it cannot be put in order",
        ],
    );
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
fn wrong_keys_are_reported_once() {
    for version in [quote!(0), quote!(-1), quote!(4294967296)] {
        check(
            quote! {
                #[domain_event(aggregate = "order", name = "placed", version = #version)]
                struct OrderPlaced(#[domain_event(aggregate_id)] u64);
            },
            &["`version` is a number from 1 to 4294967295"],
        );
    }
    check(
        quote! {
            #[domain_event(aggregate = "order.eu", aggregate_id, name = "placed", name = "placed")]
            struct OrderPlaced(#[domain_event(aggregate_id, subject = "a")] u64);
        },
        &[
            "unknown key `aggregate_id`",
            "`name` is written twice",
            "`aggregate` consists of 1 to 64 characters: a lower-case letter followed by `a-z`, `0-9`, `-` and `_`",
            "unknown key `subject`",
        ],
    );
    check(
        quote! {
            #[domain_event(aggregate = "order", name = "placed")]
            enum OrderEvent {
                #[domain_event(name = "placed", codec = Cbor)]
                Placed(#[domain_event] u64),
            }
        },
        &[
            "unknown key `name`",
            "unknown key `codec`",
            "expected attribute arguments in parentheses: `domain_event(...)`",
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
    check(
        quote!(#attribute struct Placed;),
        &["event `Placed` has no aggregate id, so it cannot be put in order"],
    );
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
    for parameters in [quote!(<T>), quote!(<const N: usize>), quote!(<'a>)] {
        check(
            quote!(#attribute struct Placed #parameters (#[domain_event(aggregate_id)] u64);),
            &["event `Placed` is generic or borrows data, but a stored event is one owned type"],
        );
    }
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
fn code_next_to_errors_is_emitted_where_possible() {
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
