#[automatically_derived]
#[allow(deprecated)]
impl ::my_service::outbox::DomainEvent for Closed {
    const DESCRIPTORS: &'static [::my_service::outbox::EventDescriptor] = &[
        ::my_service::outbox::EventDescriptor {
            aggregate: "order",
            name: "closed",
            version: 1u32,
            subject: ::core::option::Option::None,
            sequenced: true,
            rust_type: ::core::concat!(::core::module_path!(), "::", "Closed"),
            file: ::core::file!(),
            line: ::core::line!(),
        },
    ];
    fn descriptor(&self) -> &'static ::my_service::outbox::EventDescriptor {
        &<Self as ::my_service::outbox::DomainEvent>::DESCRIPTORS[0usize]
    }
    fn aggregate_id(&self) -> ::my_service::outbox::AggregateId {
        <u64 as ::my_service::outbox::ToAggregateId>::to_aggregate_id(&self.0)
    }
    fn dedup_key(&self) -> ::core::option::Option<::std::string::String> {
        ::core::option::Option::None
    }
}
#[automatically_derived]
#[allow(deprecated)]
impl ::my_service::outbox::payload::EventCodec for Closed {
    type Codec = ::my_service::outbox::payload::Json;
}
#[allow(deprecated)]
const _: () = {
    ::my_service::outbox::__private::inventory::submit! {
        ::my_service::outbox::__private::CatalogueEntry { descriptors : < Closed as
        ::my_service::outbox::DomainEvent > ::DESCRIPTORS, sensitive : < Closed as
        ::my_service::outbox::DomainEvent > ::SENSITIVE, }
    }
};
