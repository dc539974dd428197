//! Finds the paths of the runtime crates in generated code.
//!
//! The first match wins:
//!
//! 1. the key `crate = …`, applied before this module;
//! 2. `outbox-engine` (library `outbox_core`) or `outbox-inbox` among the dependencies of the
//!    user's crate, also if renamed;
//! 3. the crate `outbox`, which has both as modules;
//! 4. the usual name, for builds without a manifest.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Ident, Span};
use syn::{Path, parse_quote};

const FACADE: &str = "outbox";

#[derive(Debug, Clone, Copy)]
pub(crate) enum Runtime {
    Core,
    Inbox,
}

impl Runtime {
    pub(crate) fn path(self) -> Path {
        self.path_by(dependency)
    }

    fn path_by(self, name_of: impl Fn(&str) -> Option<String>) -> Path {
        let (package, library, module) = match self {
            Self::Core => ("outbox-engine", "outbox_core", "core"),
            Self::Inbox => ("outbox-inbox", "outbox_inbox", "inbox"),
        };
        if let Some(name) = name_of(package) {
            // `crate_name` returns the package name. Code uses the library name, unless
            // `Cargo.toml` renames the dependency.
            let is_renamed = name != package.replace('-', "_");
            let name = ident(if is_renamed { &name } else { library });
            return parse_quote!(::#name);
        }
        if let Some(name) = name_of(FACADE) {
            let (name, module) = (ident(&name), ident(module));
            return parse_quote!(::#name::#module);
        }
        let library = ident(library);
        parse_quote!(::#library)
    }
}

fn dependency(package: &str) -> Option<String> {
    match crate_name(package).ok()? {
        FoundCrate::Name(name) => Some(name),
        // The library's own tests, examples and doc tests use the library as an external crate.
        FoundCrate::Itself => Some(package.replace('-', "_")),
    }
}

fn ident(name: &str) -> Ident {
    Ident::new(name, Span::call_site())
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;

    use super::*;

    #[track_caller]
    fn check(dependencies: &[(&str, &str)], core: &str, inbox: &str) {
        let name_of = |package: &str| {
            let found = dependencies.iter().find(|(name, _)| *name == package)?;
            Some(found.1.to_owned())
        };
        let text = |runtime: Runtime| {
            let path = runtime.path_by(name_of).to_token_stream().to_string();
            path.replace(' ', "")
        };
        assert_eq!(
            (text(Runtime::Core).as_str(), text(Runtime::Inbox).as_str()),
            (core, inbox)
        );
    }

    #[test]
    fn single_crates_are_found_under_their_names() {
        let engine = ("outbox-engine", "outbox_engine");
        check(
            &[engine, ("outbox-inbox", "consume")],
            "::outbox_core",
            "::consume",
        );
        check(&[("outbox-engine", "engine")], "::engine", "::outbox_inbox");
    }

    #[test]
    fn facade_provides_both_crates() {
        check(&[("outbox", "outbox")], "::outbox::core", "::outbox::inbox");
        check(&[("outbox", "ob")], "::ob::core", "::ob::inbox");
    }

    #[test]
    fn single_crate_takes_precedence_over_the_facade() {
        check(
            &[("outbox", "outbox"), ("outbox-engine", "outbox_core")],
            "::outbox_core",
            "::outbox::inbox",
        );
    }

    #[test]
    fn default_name_without_any_dependency() {
        check(&[], "::outbox_core", "::outbox_inbox");
        assert_eq!(dependency("outbox-engine"), None);
    }
}
