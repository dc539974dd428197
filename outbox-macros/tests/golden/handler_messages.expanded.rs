async fn keep(message: RawMessage, tx: Tx<'_>) -> Result<(), HandlerError> {
    store(message, tx).await
}
#[doc(hidden)]
#[allow(non_camel_case_types)]
struct keep {}
#[allow(deprecated)]
const _: () = {
    impl ::outbox_inbox::Handler for keep {
        const REGISTRATION: ::outbox_inbox::Registration = ::outbox_inbox::Registration {
            consumer: "audit",
            handler: ::core::concat!(::core::module_path!(), "::", "keep"),
            events: &[
                ::outbox_inbox::__private::EventDescriptor::of_type("order", "placed"),
                ::outbox_inbox::__private::EventDescriptor::of_aggregate("cart"),
                ::outbox_inbox::__private::EventDescriptor::EVERYTHING,
            ],
            file: ::core::file!(),
            line: ::core::line!(),
            requires: &[<Tx<'_> as ::outbox_inbox::FromContext<'_>>::REQUIRES],
            shape: ::outbox_inbox::Shape {
                several: <RawMessage as ::outbox_inbox::RawArgument>::SEVERAL,
                transactional: false
                    || <Tx<'_> as ::outbox_inbox::FromContext<'_>>::TRANSACTIONAL,
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
            let __a0 = <RawMessage as ::outbox_inbox::RawArgument>::take(&__context)?;
            let __a1 = <Tx<
                '_,
            > as ::outbox_inbox::FromContext<'_>>::from_context(&__context)?;
            <Result<
                (),
                HandlerError,
            > as ::outbox_inbox::__private::IntoOutcome>::into_outcome(
                keep(__a0, __a1).await,
            )
        })
    }
    ::outbox_inbox::__private::inventory::submit! {
        < keep as ::outbox_inbox::Handler > ::REGISTRATION
    }
};
