//! The driver of a browser, for tests of the dashboard. It brings the browser with it, and tests start both themselves.

use std::path::PathBuf;

use anyhow::{Result, anyhow};

use crate::services::install;
use crate::services::programs::find;

const PROGRAM: &str = "chromedriver";
const PACKAGE: &str = "chromium-driver";

/// Finds the driver, or installs it with its browser.
pub(super) fn driver() -> Result<PathBuf> {
    if find(PROGRAM).is_none() {
        install::debian_package(PACKAGE)?;
    }
    find(PROGRAM).ok_or_else(|| anyhow!("{PACKAGE} was installed and has no {PROGRAM}"))
}
