#[automatically_derived]
#[allow(deprecated)]
impl ::outbox_core::DomainEvent for CustomerRegistered {
    const DESCRIPTORS: &'static [::outbox_core::EventDescriptor] = &[
        ::outbox_core::EventDescriptor {
            aggregate: "customer",
            name: "registered",
            version: 1u32,
            subject: ::core::option::Option::None,
            sequenced: true,
            rust_type: ::core::concat!(
                ::core::module_path!(), "::", "CustomerRegistered"
            ),
            file: ::core::file!(),
            line: ::core::line!(),
        },
    ];
    const SENSITIVE: &'static [&'static str] = &["email", "mail", "shipTo"];
    fn descriptor(&self) -> &'static ::outbox_core::EventDescriptor {
        &<Self as ::outbox_core::DomainEvent>::DESCRIPTORS[0usize]
    }
    fn aggregate_id(&self) -> ::outbox_core::AggregateId {
        <Uuid as ::outbox_core::ToAggregateId>::to_aggregate_id(&self.customer_id)
    }
    fn dedup_key(&self) -> ::core::option::Option<::std::string::String> {
        ::core::option::Option::None
    }
}
#[automatically_derived]
#[allow(deprecated)]
impl ::outbox_core::payload::EventCodec for CustomerRegistered {
    type Codec = ::outbox_core::payload::Json;
}
#[allow(deprecated)]
const _: () = {
    ::outbox_core::__private::inventory::submit! {
        ::outbox_core::__private::CatalogueEntry { descriptors : < CustomerRegistered as
        ::outbox_core::DomainEvent > ::DESCRIPTORS, sensitive : < CustomerRegistered as
        ::outbox_core::DomainEvent > ::SENSITIVE, }
    }
};
