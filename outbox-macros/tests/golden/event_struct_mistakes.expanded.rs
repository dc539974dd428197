#[automatically_derived]
#[allow(deprecated)]
impl ::outbox_core::DomainEvent for OrderPlaced {
    const DESCRIPTORS: &'static [::outbox_core::EventDescriptor] = &[];
    fn descriptor(&self) -> &'static ::outbox_core::EventDescriptor {
        ::core::unreachable!()
    }
    fn aggregate_id(&self) -> ::outbox_core::AggregateId {
        ::core::unreachable!()
    }
    fn dedup_key(&self) -> ::core::option::Option<::std::string::String> {
        ::core::unreachable!()
    }
}
#[automatically_derived]
#[allow(deprecated)]
impl ::outbox_core::payload::EventCodec for OrderPlaced {
    type Codec = ::outbox_core::payload::Json;
}
::core::compile_error! {
    "`name` contains a dot, and dots separate the tokens of a subject\nnote: write `name = \"order_placed\"`"
}
::core::compile_error! {
    "`OrderPlaced` has no aggregate, so nothing says what kind of thing it happened to\nnote: add `#[domain_event(aggregate = \"…\")]` above it, for example `aggregate = \"order\"`"
}
::core::compile_error! {
    "event `OrderPlaced` has no aggregate id, so it cannot be put in order\nnote: put `#[domain_event(aggregate_id)]` on the field that identifies the aggregate, for example `order_id`"
}
