//! The names of sensitive fields in payloads.

use super::*;

#[test]
fn sensitive_fields_have_their_serde_names() {
    let names = |item: TokenStream| -> Vec<Vec<String>> {
        let events = events(item).into_iter();
        events.map(|event| event.sensitive).collect()
    };
    let of_struct = names(quote! {
        #[domain_event(aggregate = "order", name = "placed")]
        #[serde(rename_all(serialize = "camelCase", deserialize = "SCREAMING-KEBAB-CASE"), deny_unknown_fields)]
        struct OrderPlaced {
            #[domain_event(aggregate_id)] order_id: u64,
            #[domain_event(sensitive)] ship_to: Address,
            #[domain_event(sensitive)]
            #[serde(rename = "mail", alias = "e-mail", default, with = "text")]
            email: String,
            #[domain_event(sensitive)] #[serde(rename(serialize = "out"), skip_serializing_if = "Option::is_none")]
            r#type: Option<String>,
            #[domain_event(sensitive)] #[serde(rename(serialize = "w", deserialize = "r1", deserialize = "r2"))]
            phone: String,
        }
    });
    assert_eq!(
        of_struct,
        [[
            "shipTo", "SHIP-TO", "mail", "mail", "e-mail", "out", "TYPE", "w", "r1", "r2"
        ]]
    );
    let of_enum = names(quote! {
        #[domain_event(aggregate = "order")]
        #[serde(tag = "t", content = "c", rename_all = "lowercase", rename_all_fields = "PascalCase")]
        enum OrderEvent {
            #[domain_event(name = "placed")]
            Placed { #[domain_event(aggregate_id)] id: u64, #[domain_event(sensitive)] ship_to: String },
            #[domain_event(name = "shipped")]
            #[serde(rename_all = "kebab-case")]
            Shipped { #[domain_event(aggregate_id)] id: u64, #[domain_event(sensitive)] ship_to: String },
            #[domain_event(name = "lost")]
            Lost(#[domain_event(aggregate_id)] u64),
        }
    });
    assert_eq!(of_enum, [&["ShipTo"; 2][..], &["ship-to"; 2], &[]]);
}

#[test]
fn sensitive_field_with_uncertain_name_is_rejected() {
    let attribute = quote!(#[domain_event(aggregate = "order", name = "placed")]);
    let wrong = |key: &str, place: &str| {
        format!("`#[serde({key})]` on {place} leaves a `sensitive` field without its name in the payload")
    };
    for key in ["flatten", "skip"] {
        let wrong = wrong(key, "the field");
        let key = quote::format_ident!("{key}");
        let item = quote! {
            #attribute
            struct Placed { #[domain_event(aggregate_id)] a: u64, #[domain_event(sensitive)] #[serde(#key)] b: String }
        };
        check(item, &[&wrong]);
    }
    for key in ["into", "from", "try_from", "remote"] {
        let wrong = wrong(key, "the type");
        let key = quote::format_ident!("{key}");
        let item = quote! {
            #attribute
            #[serde(#key = "Wire")]
            struct Placed { #[domain_event(aggregate_id)] a: u64, #[domain_event(sensitive)] b: String }
        };
        check(item, &[&wrong]);
    }
    check(
        quote! {
            #attribute
            struct Placed(#[domain_event(aggregate_id)] u64, #[domain_event(sensitive)] String);
        },
        &["a field of a tuple has no name in the payload, so it cannot be masked"],
    );
    check(
        quote! {
            #attribute
            struct Placed(#[domain_event(aggregate_id, sensitive)] u64, #[domain_event(dedup_key, sensitive)] String);
        },
        &[
            "`aggregate_id` cannot be `sensitive`: its value is also outside the payload, where nothing is masked",
            "`dedup_key` cannot be `sensitive`: its value is also outside the payload, where nothing is masked",
        ],
    );
}
