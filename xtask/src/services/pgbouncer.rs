//! The pooler that some put before PostgreSQL. No instance of it is started here.

use std::path::PathBuf;

use anyhow::{Result, anyhow};

use crate::services::install;
use crate::services::programs::find;

const PROGRAM: &str = "pgbouncer";

/// Finds the program, or installs Debian's package of it.
pub(super) fn program() -> Result<PathBuf> {
    if find(PROGRAM).is_none() {
        install::debian_package(PROGRAM)?;
    }
    find(PROGRAM).ok_or_else(|| anyhow!("the package {PROGRAM} holds no {PROGRAM}"))
}
