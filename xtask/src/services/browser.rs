//! The driver of a browser, for tests of the dashboard. It brings the browser with it, and tests start both themselves.

use std::path::PathBuf;

use crate::failure::{Failure, Result};
use crate::services::install;
use crate::services::programs::find;

const PROGRAM: &str = "chromedriver";
const PACKAGE: &str = "chromium-driver";

/// Finds the driver, or installs it with its browser.
pub(super) fn driver() -> Result<PathBuf> {
    if find(PROGRAM).is_none() {
        install::debian_package(PACKAGE)?;
    }
    find(PROGRAM).ok_or_else(|| Failure::new(format!("{PACKAGE} was installed and has no {PROGRAM}")))
}
