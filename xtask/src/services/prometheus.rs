//! The program of Prometheus that checks and tests alerts. No server of it is started.

use std::path::PathBuf;

use anyhow::{Result, anyhow};

use crate::services::install;
use crate::services::programs::find;

const PROGRAM: &str = "promtool";
const PACKAGE: &str = "prometheus";

/// Finds the program, or installs it.
pub(super) fn program() -> Result<PathBuf> {
    if find(PROGRAM).is_none() {
        install::debian_package(PACKAGE)?;
    }
    find(PROGRAM).ok_or_else(|| anyhow!("{PACKAGE} was installed and has no {PROGRAM}"))
}
