#[cfg(feature = "mail")]
#[tracing::instrument]
pub(crate) async fn r#move(Event(event): Event<OrderPlaced>) -> Result<(), MailError> {
    send(event).await
}
#[cfg(feature = "mail")]
#[doc(hidden)]
#[allow(non_camel_case_types)]
pub(crate) struct r#move {}
#[cfg(feature = "mail")]
#[allow(deprecated)]
const _: () = {
    impl ::my_service::inbox::Handler for r#move {
        const REGISTRATION: ::my_service::inbox::Registration = ::my_service::inbox::Registration {
            consumer: "mail",
            handler: ::core::concat!(::core::module_path!(), "::", "move"),
            events: <Event<OrderPlaced> as ::my_service::inbox::EventArgument>::EVENTS,
            file: ::core::file!(),
            line: ::core::line!(),
            requires: &[],
            shape: ::my_service::inbox::Shape {
                several: <Event<
                    OrderPlaced,
                > as ::my_service::inbox::EventArgument>::SEVERAL,
                transactional: false,
                replies: <Result<
                    (),
                    MailError,
                > as ::my_service::inbox::__private::IntoOutcome>::REPLIES,
                emits: <Result<
                    (),
                    MailError,
                > as ::my_service::inbox::__private::IntoOutcome>::EMITS,
            },
            options: ::my_service::inbox::HandlerOptions::new(),
            invoke: __invoke,
        };
    }
    fn __invoke<'a>(
        __context: ::my_service::inbox::HandlerContext<'a>,
    ) -> ::my_service::inbox::__private::BoxFuture<
        'a,
        ::core::result::Result<
            ::my_service::inbox::Effect,
            ::my_service::inbox::HandlerError,
        >,
    > {
        ::std::boxed::Box::pin(async move {
            let __a0 = <Event<
                OrderPlaced,
            > as ::my_service::inbox::EventArgument>::take(&__context)?;
            <Result<
                (),
                MailError,
            > as ::my_service::inbox::__private::IntoOutcome>::into_outcome(
                r#move(__a0).await,
            )
        })
    }
    ::my_service::inbox::__private::inventory::submit! {
        < r#move as ::my_service::inbox::Handler > ::REGISTRATION
    }
};
