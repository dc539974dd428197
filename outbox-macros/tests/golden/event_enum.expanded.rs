#[automatically_derived]
#[allow(deprecated)]
impl ::outbox_core::DomainEvent for OrderEvent {
    const DESCRIPTORS: &'static [::outbox_core::EventDescriptor] = &[
        ::outbox_core::EventDescriptor {
            aggregate: "order",
            name: "placed",
            version: 3u32,
            subject: ::core::option::Option::None,
            sequenced: true,
            rust_type: ::core::concat!(
                ::core::module_path!(), "::", "OrderEvent::Placed"
            ),
            file: ::core::file!(),
            line: ::core::line!(),
        },
        ::outbox_core::EventDescriptor {
            aggregate: "order",
            name: "shipped",
            version: 2u32,
            subject: ::core::option::Option::Some("audit.shipped"),
            sequenced: false,
            rust_type: ::core::concat!(
                ::core::module_path!(), "::", "OrderEvent::Shipped"
            ),
            file: ::core::file!(),
            line: ::core::line!(),
        },
        ::outbox_core::EventDescriptor {
            aggregate: "customer",
            name: "warned",
            version: 2u32,
            subject: ::core::option::Option::None,
            sequenced: true,
            rust_type: ::core::concat!(
                ::core::module_path!(), "::", "OrderEvent::Warned"
            ),
            file: ::core::file!(),
            line: ::core::line!(),
        },
    ];
    fn descriptor(&self) -> &'static ::outbox_core::EventDescriptor {
        match self {
            Self::Placed { .. } => {
                &<Self as ::outbox_core::DomainEvent>::DESCRIPTORS[0usize]
            }
            Self::Shipped { .. } => {
                &<Self as ::outbox_core::DomainEvent>::DESCRIPTORS[1usize]
            }
            Self::Warned { .. } => {
                &<Self as ::outbox_core::DomainEvent>::DESCRIPTORS[2usize]
            }
        }
    }
    fn aggregate_id(&self) -> ::outbox_core::AggregateId {
        match self {
            Self::Placed { order_id: __value, .. } => {
                <OrderId as ::outbox_core::ToAggregateId>::to_aggregate_id(__value)
            }
            Self::Shipped { 1: __value, .. } => {
                <OrderId as ::outbox_core::ToAggregateId>::to_aggregate_id(__value)
            }
            Self::Warned { r#type: __value, .. } => {
                <u64 as ::outbox_core::ToAggregateId>::to_aggregate_id(__value)
            }
        }
    }
    fn dedup_key(&self) -> ::core::option::Option<::std::string::String> {
        match self {
            Self::Placed { request: __value, .. } => {
                ::core::option::Option::Some(
                    <String as ::std::string::ToString>::to_string(__value),
                )
            }
            Self::Shipped { 1: __value, .. } => {
                ::core::option::Option::Some(
                    <OrderId as ::std::string::ToString>::to_string(__value),
                )
            }
            Self::Warned { .. } => ::core::option::Option::None,
        }
    }
}
#[automatically_derived]
#[allow(deprecated)]
impl ::outbox_core::payload::EventCodec for OrderEvent {
    type Codec = ::outbox_core::payload::Json;
}
#[allow(deprecated)]
const _: () = {
    ::outbox_core::__private::inventory::submit! {
        ::outbox_core::__private::CatalogueEntry { descriptors : < OrderEvent as
        ::outbox_core::DomainEvent > ::DESCRIPTORS, sensitive : < OrderEvent as
        ::outbox_core::DomainEvent > ::SENSITIVE, }
    }
};
