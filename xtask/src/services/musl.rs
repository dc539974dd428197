//! What a static program is built with: the standard library of Rust for musl, and a C compiler for it.

use std::env::consts::ARCH;

use anyhow::{Context as _, Result};

use crate::process::tied;
use crate::services::again;
use crate::services::install::{self, INSTALL_LIMIT};
use crate::services::programs::find;

const COMPILER: &str = "musl-gcc";
const PACKAGE: &str = "musl-tools";

/// Finds both, or installs them. Returns the name of the target.
pub(crate) fn tools() -> Result<String> {
    if find(COMPILER).is_none() {
        install::debian_package_unless(PACKAGE, || find(COMPILER).is_some())?;
    }
    let target = format!("{ARCH}-unknown-linux-musl");
    let mut add = tied("rustup");
    add.args(["target", "add", &target]);
    again::run(&add, INSTALL_LIMIT).with_context(|| {
        format!("no standard library for {target}; is rustup there, and static.rust-lang.org reachable?")
    })?;
    Ok(target)
}
