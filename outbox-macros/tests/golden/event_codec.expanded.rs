#[automatically_derived]
#[allow(deprecated)]
impl ::outbox_core::DomainEvent for Measured {
    const DESCRIPTORS: &'static [::outbox_core::EventDescriptor] = &[
        ::outbox_core::EventDescriptor {
            aggregate: "sensor",
            name: "measured",
            version: 1u32,
            subject: ::core::option::Option::None,
            sequenced: true,
            rust_type: ::core::concat!(::core::module_path!(), "::", "Measured"),
            file: ::core::file!(),
            line: ::core::line!(),
        },
    ];
    fn descriptor(&self) -> &'static ::outbox_core::EventDescriptor {
        &<Self as ::outbox_core::DomainEvent>::DESCRIPTORS[0usize]
    }
    fn aggregate_id(&self) -> ::outbox_core::AggregateId {
        <u32 as ::outbox_core::ToAggregateId>::to_aggregate_id(&self.sensor)
    }
    fn dedup_key(&self) -> ::core::option::Option<::std::string::String> {
        ::core::option::Option::None
    }
    fn encode(
        &self,
    ) -> ::core::result::Result<
        ::outbox_core::payload::Payload,
        ::outbox_core::payload::CodecError,
    > {
        ::outbox_core::payload::with::<outbox_core::Cbor, Self>(self)
    }
}
#[automatically_derived]
#[allow(deprecated)]
impl ::outbox_core::payload::EventCodec for Measured {
    type Codec = outbox_core::Cbor;
}
#[allow(deprecated)]
const _: () = {
    ::outbox_core::__private::inventory::submit! {
        ::outbox_core::__private::CatalogueEntry { descriptors : < Measured as
        ::outbox_core::DomainEvent > ::DESCRIPTORS, sensitive : < Measured as
        ::outbox_core::DomainEvent > ::SENSITIVE, }
    }
};
