pub fn reserve_stock<T>(event: Event<T>) {
    drop(event)
}
#[doc(hidden)]
#[allow(non_camel_case_types)]
pub struct reserve_stock {}
impl ::outbox_inbox::Handler for reserve_stock {
    const REGISTRATION: ::outbox_inbox::Registration = ::core::unreachable!();
}
::core::compile_error! {
    "`consumer` consists of `A-Z`, `a-z`, `0-9`, `-` and `_`\nnote: write `consumer = \"in_ventory\"`"
}
::core::compile_error! {
    "handler `reserve_stock` is not async\nnote: write `async fn reserve_stock`"
}
::core::compile_error! {
    "handler `reserve_stock` is generic, but one registration stands for one function\nnote: name the types, and write borrowed arguments with `'_`, for example `Tx<'_>`"
}
::core::compile_error! {
    "handler `reserve_stock` returns nothing, so it cannot report a failure\nnote: return `Result<(), HandlerError>`"
}
