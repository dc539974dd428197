//! The keys of `#[idempotent_handler(…)]`. A new key needs a field, a word in [`LEGAL`] and an arm
//! in [`Keys::read`].

use proc_macro2::TokenStream;
use syn::{LitInt, LitStr, Path};

use crate::diagnostics::Diagnostics;
use crate::keys::{self, Slot, Word};

const LEGAL: &[&str] = &[
    "consumer", "messages", "strategy", "order", "batch", "attempts", "backoff", "timeout", "crate",
];
const STRATEGIES: &[&str] = &[
    "message_id",
    "sequence",
    "natural",
    "key",
    "constraint",
    "external",
];
const ORDERS: &[&str] = &["aggregate", "none", "strict"];

#[derive(Default)]
pub(super) struct Keys {
    pub(super) consumer: Slot<LitStr>,
    pub(super) messages: Slot<Vec<LitStr>>,
    pub(super) strategy: Slot<Word>,
    pub(super) order: Slot<Word>,
    pub(super) batch: Slot<LitInt>,
    pub(super) attempts: Slot<LitInt>,
    pub(super) backoff: Slot<LitStr>,
    pub(super) timeout: Slot<LitStr>,
    pub(super) crate_path: Slot<Path>,
}

impl Keys {
    pub(super) fn read(arguments: TokenStream, diagnostics: &Diagnostics) -> Self {
        let mut keys = Self::default();
        let mut understood = true;
        let all_keys = keys::read(arguments, LEGAL, diagnostics, |written| {
            match written.key.to_string().as_str() {
                "consumer" => written.string(&mut keys.consumer),
                "messages" => written.strings(&mut keys.messages),
                "strategy" => written.word(&mut keys.strategy, STRATEGIES),
                "order" => written.word(&mut keys.order, ORDERS),
                "batch" => written.integer(&mut keys.batch),
                "attempts" => written.integer(&mut keys.attempts),
                "backoff" => written.string(&mut keys.backoff),
                "timeout" => written.string(&mut keys.timeout),
                "crate" => written.path(&mut keys.crate_path),
                _ => {
                    written.unknown();
                    understood = false;
                }
            }
        });
        if !(all_keys && understood) && keys.consumer.is_absent() {
            // The unreadable key may be the consumer, so a missing consumer is not reported.
            keys.consumer = Slot::Faulty;
        }
        keys
    }
}
