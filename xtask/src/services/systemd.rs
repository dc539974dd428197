//! The programs that judge the unit of the relay: systemd's own, and one that notes the system calls of a program. No service is started by systemd.

use std::path::PathBuf;

use anyhow::{Result, anyhow};

use crate::services::install;
use crate::services::programs::find;

/// Finds the program that judges units, or installs it with systemd, which does not run for that.
pub(super) fn analyze() -> Result<PathBuf> {
    of_package("systemd-analyze", "systemd")
}

/// Finds the program that notes system calls, or installs it.
pub(super) fn strace() -> Result<PathBuf> {
    of_package("strace", "strace")
}

fn of_package(program: &str, package: &str) -> Result<PathBuf> {
    if find(program).is_none() {
        install::debian_package_unless(package, || find(program).is_some())?;
    }
    find(program).ok_or_else(|| anyhow!("{package} was installed and has no {program}"))
}
