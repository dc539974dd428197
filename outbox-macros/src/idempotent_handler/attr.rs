//! The keys of `#[idempotent_handler(…)]`. A new key is a field, a word in [`LEGAL`] and an arm in [`Keys::read`].

use proc_macro2::TokenStream;
use syn::{LitStr, Path};

use crate::diagnostics::Diagnostics;
use crate::keys::{self, Slot};

const LEGAL: &[&str] = &["consumer", "crate"];

/// The keys as written.
#[derive(Default)]
pub(super) struct Keys {
    pub(super) consumer: Slot<LitStr>,
    pub(super) crate_path: Slot<Path>,
}

impl Keys {
    pub(super) fn read(arguments: TokenStream, diagnostics: &Diagnostics) -> Self {
        let mut keys = Self::default();
        let mut understood = true;
        let all_keys = keys::read(arguments, LEGAL, diagnostics, |written| {
            match written.key.to_string().as_str() {
                "consumer" => written.string(&mut keys.consumer),
                "crate" => written.path(&mut keys.crate_path),
                _ => {
                    written.unknown();
                    understood = false;
                }
            }
        });
        if !(all_keys && understood) && keys.consumer.is_absent() {
            // What could not be read may have been the consumer: one mistake, one message.
            keys.consumer = Slot::Faulty;
        }
        keys
    }
}
