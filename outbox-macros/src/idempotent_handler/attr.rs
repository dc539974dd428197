//! The keys of `#[idempotent_handler(…)]`. A new key needs a field, a word in [`LEGAL`] and a line
//! in [`Keys::read`].

use std::time::Duration;

use proc_macro2::{Ident, TokenStream};
use syn::{ExprArray, LitStr, Path};

use super::options::{self, Pattern, Strategy};
use crate::diagnostics::Diagnostics;
use crate::runtime::Runtime;
use crate::{durations, keys, names};

const LEGAL: &[&str] = &[
    "consumer", "messages", "strategy", "order", "batch", "attempts", "backoff", "timeout", "crate",
];

pub(super) struct Keys {
    pub(super) consumer: Option<LitStr>,
    pub(super) messages: Option<Vec<Pattern>>,
    pub(super) options: Options,
    pub(super) crate_path: Path,
}

/// Unset options get the runtime's defaults.
pub(super) struct Options {
    pub(super) strategy: Option<Strategy>,
    pub(super) order: Option<Ident>,
    pub(super) batch: Option<u32>,
    pub(super) attempts: Option<u32>,
    pub(super) backoff: Option<(Duration, Duration)>,
    pub(super) timeout: Option<Duration>,
}

impl Keys {
    pub(super) fn read(arguments: TokenStream, diagnostics: &Diagnostics) -> Self {
        let mut keys = keys::Keys::read([arguments], LEGAL, diagnostics);
        let strategy = keys.value("strategy", "sequence");
        let order = keys.value("order", "strict");
        let messages: Option<ExprArray> = keys.value("messages", "[\"order.placed\"]");
        let crate_path = keys.value("crate", "::some::path");
        let keys = Self {
            consumer: keys
                .text("consumer", "inventory", names::consumer)
                .map(|(literal, ())| literal),
            messages: messages.map(|array| options::patterns(&array, diagnostics)),
            options: Options {
                strategy: strategy.and_then(|value| options::strategy(&value, diagnostics)),
                order: order.and_then(|word| options::order(word, diagnostics)),
                batch: keys.number("batch", 1..=1000),
                attempts: keys.number("attempts", 1..=1_000_000),
                backoff: keys
                    .text("backoff", "1s..5m", durations::range)
                    .map(|(_, range)| range),
                timeout: keys
                    .text("timeout", "20s", durations::positive)
                    .map(|(_, time)| time),
            },
            crate_path: crate_path.unwrap_or_else(|| Runtime::Inbox.path()),
        };
        options::check_combinations(&keys, diagnostics);
        keys
    }
}
