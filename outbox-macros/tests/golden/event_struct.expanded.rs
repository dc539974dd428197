#[automatically_derived]
#[allow(deprecated)]
impl ::outbox_core::DomainEvent for OrderPlaced {
    const DESCRIPTORS: &'static [::outbox_core::EventDescriptor] = &[
        ::outbox_core::EventDescriptor {
            aggregate: "order",
            name: "placed",
            version: 1u32,
            subject: ::core::option::Option::None,
            sequenced: true,
            rust_type: ::core::concat!(::core::module_path!(), "::", "OrderPlaced"),
            file: ::core::file!(),
            line: ::core::line!(),
        },
    ];
    fn descriptor(&self) -> &'static ::outbox_core::EventDescriptor {
        &<Self as ::outbox_core::DomainEvent>::DESCRIPTORS[0usize]
    }
    fn aggregate_id(&self) -> ::outbox_core::AggregateId {
        <Uuid as ::outbox_core::ToAggregateId>::to_aggregate_id(&self.order_id)
    }
    fn dedup_key(&self) -> ::core::option::Option<::std::string::String> {
        ::core::option::Option::Some(
            <String as ::std::string::ToString>::to_string(&self.request),
        )
    }
}
#[automatically_derived]
#[allow(deprecated)]
impl ::outbox_core::payload::EventCodec for OrderPlaced {
    type Codec = ::outbox_core::payload::Json;
}
#[allow(deprecated)]
const _: () = {
    ::outbox_core::__private::inventory::submit! {
        ::outbox_core::__private::CatalogueEntry { descriptors : < OrderPlaced as
        ::outbox_core::DomainEvent > ::DESCRIPTORS, sensitive : < OrderPlaced as
        ::outbox_core::DomainEvent > ::SENSITIVE, }
    }
};
