//! Golden expansions: expands and pretty-prints each `tests/golden/<name>.rs`, and compares the result with the
//! checked-in `<name>.expanded.rs`, so that a review shows the generated code.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::{Attribute, Item, Meta};

use crate::diagnostics::Expansion;
use crate::{domain_event, idempotent_handler};

const BLESS: &str = "OUTBOX_BLESS";

#[test]
fn expansions_are_as_checked_in() {
    let bless = std::env::var_os(BLESS).is_some();
    let mut stale = Vec::new();
    for input in inputs() {
        let expected = input.with_extension("expanded.rs");
        let actual = expand(&input);
        if bless {
            fs::write(&expected, actual).expect("the golden folder is writable");
        } else if fs::read_to_string(&expected).ok().as_deref() != Some(&actual) {
            stale.push(format!("--- {} would be\n{actual}", expected.display()));
        }
    }
    assert!(
        stale.is_empty(),
        "{}\nIf the new code is right, run `{BLESS}=1 cargo test -p outbox-macros` and review the difference.",
        stale.join("\n")
    );
}

fn inputs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut inputs: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the golden folder exists")
        .map(|entry| entry.expect("the golden folder is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| !path.to_string_lossy().ends_with(".expanded.rs"))
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "the golden folder has inputs");
    inputs
}

/// Expands each item with our macros, as the compiler would. Other items are left out.
fn expand(input: &Path) -> String {
    let source = fs::read_to_string(input).expect("the input is readable");
    let file = syn::parse_file(&source).expect("the input is Rust");
    let code: TokenStream = file
        .items
        .into_iter()
        .filter_map(expand_item)
        .map(Expansion::into_tokens)
        .collect();
    let code = syn::parse2(code).expect("the expansion is Rust");
    prettyplease::unparse(&code)
}

fn expand_item(mut item: Item) -> Option<Expansion> {
    let Item::Fn(function) = &mut item else {
        return matches!(item, Item::Struct(_) | Item::Enum(_) | Item::Union(_))
            .then(|| domain_event::derive(item.into_token_stream()));
    };
    let is_handler = |attribute: &Attribute| attribute.path().is_ident("idempotent_handler");
    let position = function.attrs.iter().position(is_handler)?;
    let arguments = match function.attrs.remove(position).meta {
        Meta::List(list) => list.tokens,
        Meta::Path(_) | Meta::NameValue(_) => TokenStream::new(),
    };
    Some(idempotent_handler::attribute(arguments, item.into_token_stream()))
}
