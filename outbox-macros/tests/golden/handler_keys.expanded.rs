async fn charge(event: Event<OrderPlaced>) -> Result<Reply<Receipt>, HandlerError> {
    pay(event).await
}
#[doc(hidden)]
#[allow(non_camel_case_types)]
struct charge {}
#[allow(deprecated)]
const _: () = {
    impl ::outbox_inbox::Handler for charge {
        const REGISTRATION: ::outbox_inbox::Registration = ::outbox_inbox::Registration {
            consumer: "billing",
            handler: ::core::concat!(::core::module_path!(), "::", "charge"),
            events: <Event<OrderPlaced> as ::outbox_inbox::EventArgument>::EVENTS,
            file: ::core::file!(),
            line: ::core::line!(),
            requires: &[],
            shape: ::outbox_inbox::Shape {
                several: <Event<OrderPlaced> as ::outbox_inbox::EventArgument>::SEVERAL,
                transactional: false,
                replies: <Result<
                    Reply<Receipt>,
                    HandlerError,
                > as ::outbox_inbox::__private::IntoOutcome>::REPLIES,
                emits: <Result<
                    Reply<Receipt>,
                    HandlerError,
                > as ::outbox_inbox::__private::IntoOutcome>::EMITS,
            },
            options: ::outbox_inbox::HandlerOptions::new()
                .strategy(::outbox_inbox::Strategy::Key(__key))
                .on_duplicate(::outbox_inbox::OnDuplicate::Result),
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
            let __a0 = <Event<
                OrderPlaced,
            > as ::outbox_inbox::EventArgument>::take(&__context)?;
            <Result<
                Reply<Receipt>,
                HandlerError,
            > as ::outbox_inbox::__private::IntoOutcome>::into_outcome(
                charge(__a0).await,
            )
        })
    }
    fn __key(
        __message: &::outbox_inbox::__private::Message,
    ) -> ::core::result::Result<::std::string::String, ::outbox_inbox::HandlerError> {
        ::outbox_inbox::__private::business_key::<
            <Event<OrderPlaced> as ::outbox_inbox::EventArgument>::Event,
        >(
            __message,
            |__event| ::outbox_inbox::__private::key_text(&__event.order_number),
        )
    }
    ::outbox_inbox::__private::inventory::submit! {
        < charge as ::outbox_inbox::Handler > ::REGISTRATION
    }
};
async fn ship(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    send(event).await
}
#[doc(hidden)]
#[allow(non_camel_case_types)]
struct ship {}
#[allow(deprecated)]
const _: () = {
    impl ::outbox_inbox::Handler for ship {
        const REGISTRATION: ::outbox_inbox::Registration = ::outbox_inbox::Registration {
            consumer: "shipping",
            handler: ::core::concat!(::core::module_path!(), "::", "ship"),
            events: <Event<OrderPlaced> as ::outbox_inbox::EventArgument>::EVENTS,
            file: ::core::file!(),
            line: ::core::line!(),
            requires: &[],
            shape: ::outbox_inbox::Shape {
                several: <Event<OrderPlaced> as ::outbox_inbox::EventArgument>::SEVERAL,
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
                .strategy(::outbox_inbox::Strategy::Key(__key)),
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
            let __a0 = <Event<
                OrderPlaced,
            > as ::outbox_inbox::EventArgument>::take(&__context)?;
            <Result<
                (),
                HandlerError,
            > as ::outbox_inbox::__private::IntoOutcome>::into_outcome(ship(__a0).await)
        })
    }
    fn __key(
        __message: &::outbox_inbox::__private::Message,
    ) -> ::core::result::Result<::std::string::String, ::outbox_inbox::HandlerError> {
        ::outbox_inbox::__private::business_key::<
            <Event<OrderPlaced> as ::outbox_inbox::EventArgument>::Event,
        >(
            __message,
            |__event| ::outbox_inbox::__private::key_text(&OrderPlaced::number(__event)),
        )
    }
    ::outbox_inbox::__private::inventory::submit! {
        < ship as ::outbox_inbox::Handler > ::REGISTRATION
    }
};
async fn reserve_stock(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    reserve(event).await
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
            events: <Event<OrderPlaced> as ::outbox_inbox::EventArgument>::EVENTS,
            file: ::core::file!(),
            line: ::core::line!(),
            requires: &[],
            shape: ::outbox_inbox::Shape {
                several: <Event<OrderPlaced> as ::outbox_inbox::EventArgument>::SEVERAL,
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
                .strategy(
                    ::outbox_inbox::Strategy::Constraint(
                        &["reservations_pkey", "PRIMARY"],
                    ),
                ),
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
            let __a0 = <Event<
                OrderPlaced,
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
