/// Takes the ordered articles out of stock.
async fn reserve_stock(
    event: Event<OrderPlaced>,
    tx: Tx<'_>,
    outbox: Outbox<'_>,
) -> Result<(), HandlerError> {
    tx.execute(event).await?;
    outbox.record(StockReserved).await
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
            requires: &[
                <Tx<'_> as ::outbox_inbox::FromContext<'_>>::REQUIRES,
                <Outbox<'_> as ::outbox_inbox::FromContext<'_>>::REQUIRES,
            ],
            shape: ::outbox_inbox::Shape {
                several: <Event<OrderPlaced> as ::outbox_inbox::EventArgument>::SEVERAL,
                transactional: false
                    || <Tx<'_> as ::outbox_inbox::FromContext<'_>>::TRANSACTIONAL
                    || <Outbox<'_> as ::outbox_inbox::FromContext<'_>>::TRANSACTIONAL,
                replies: <Result<
                    (),
                    HandlerError,
                > as ::outbox_inbox::__private::IntoOutcome>::REPLIES,
                emits: <Result<
                    (),
                    HandlerError,
                > as ::outbox_inbox::__private::IntoOutcome>::EMITS,
            },
            options: ::outbox_inbox::HandlerOptions::new(),
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
            let __a1 = <Tx<
                '_,
            > as ::outbox_inbox::FromContext<'_>>::from_context(&__context)?;
            let __a2 = <Outbox<
                '_,
            > as ::outbox_inbox::FromContext<'_>>::from_context(&__context)?;
            <Result<
                (),
                HandlerError,
            > as ::outbox_inbox::__private::IntoOutcome>::into_outcome(
                reserve_stock(__a0, __a1, __a2).await,
            )
        })
    }
    ::outbox_inbox::__private::inventory::submit! {
        < reserve_stock as ::outbox_inbox::Handler > ::REGISTRATION
    }
};
