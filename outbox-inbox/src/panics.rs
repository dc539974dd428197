//! Turns panics of application code into errors.
//!
//! No value of the panicking code is used afterwards, so unwinding is safe.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt as _;

use crate::handler::without_values;

#[derive(Debug, thiserror::Error)]
#[error("{what} panicked: {text}")]
pub(crate) struct Panicked {
    what: &'static str,
    text: String,
}

impl Panicked {
    pub(crate) fn new(what: &'static str, panic: &(dyn Any + Send)) -> Self {
        let text = text_of(panic);
        Self { what, text }
    }
}

pub(crate) fn guard<T>(what: &'static str, code: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| Panicked::new(what, &*panic))
}

pub(crate) async fn guard_async<F: Future>(
    what: &'static str,
    code: impl FnOnce() -> F,
) -> Result<F::Output, Panicked> {
    AssertUnwindSafe(async { code().await })
        .catch_unwind()
        .await
        .map_err(|panic| Panicked::new(what, &*panic))
}

pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    without_values(text.unwrap_or("no message").to_owned())
}
