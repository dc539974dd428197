async fn reserve_stock(events: Vec<Event<OrderPlaced>>) -> Result<(), HandlerError> {
    reserve(events).await
}
#[doc(hidden)]
#[allow(non_camel_case_types)]
struct reserve_stock {}
#[allow(deprecated)]
const _: () = {
    impl ::outbox_inbox::Handler for reserve_stock {
        const REGISTRATION: ::outbox_inbox::Registration = ::outbox_inbox::Registration {
            consumer: "inventory",
            handler: ::core::concat!(::core::module_path!(), "::", "reserve_stock"),
            events: <Vec<Event<OrderPlaced>> as ::outbox_inbox::EventArgument>::EVENTS,
            file: ::core::file!(),
            line: ::core::line!(),
            requires: &[],
            shape: ::outbox_inbox::Shape {
                several: <Vec<
                    Event<OrderPlaced>,
                > as ::outbox_inbox::EventArgument>::SEVERAL,
                transactional: false,
                replies: <Result<
                    (),
                    HandlerError,
                > as ::outbox_inbox::__private::IntoOutcome>::REPLIES,
                emits: <Result<
                    (),
                    HandlerError,
                > as ::outbox_inbox::__private::IntoOutcome>::EMITS,
            },
            options: ::outbox_inbox::HandlerOptions::new()
                .strategy(::outbox_inbox::Strategy::Sequence {
                    gap: ::core::option::Option::Some(
                        ::core::time::Duration::new(30u64, 0u32),
                    ),
                })
                .on_duplicate(::outbox_inbox::OnDuplicate::Skip)
                .order(::outbox_inbox::Order::Strict)
                .batch(100u32)
                .attempts_max(5u32)
                .backoff(::outbox_inbox::__private::Backoff {
                    min: ::core::time::Duration::new(0u64, 250000000u32),
                    max: ::core::time::Duration::new(300u64, 0u32),
                })
                .timeout(::core::time::Duration::new(20u64, 0u32)),
            invoke: __invoke,
        };
    }
    fn __invoke<'a>(
        __context: ::outbox_inbox::HandlerContext<'a>,
    ) -> ::outbox_inbox::__private::BoxFuture<
        'a,
        ::core::result::Result<::outbox_inbox::Effect, ::outbox_inbox::HandlerError>,
    > {
        ::std::boxed::Box::pin(async move {
            let __a0 = <Vec<
                Event<OrderPlaced>,
            > as ::outbox_inbox::EventArgument>::take(&__context)?;
            <Result<
                (),
                HandlerError,
            > as ::outbox_inbox::__private::IntoOutcome>::into_outcome(
                reserve_stock(__a0).await,
            )
        })
    }
    ::outbox_inbox::__private::inventory::submit! {
        < reserve_stock as ::outbox_inbox::Handler > ::REGISTRATION
    }
};
