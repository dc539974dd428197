//! A JDK, for programs in Java that are compiled when they are run.

use anyhow::{Result, bail};

use crate::services::install;
use crate::services::programs::{find, version_of};

/// The oldest Java that runs Debezium's engine, and the one that the services in Java are written for.
const JAVA_MIN: u32 = 17;

const PACKAGE: &str = "openjdk-17-jdk-headless";

/// Finds a JDK on the PATH, or installs Debian's.
pub(super) fn jdk() -> Result<()> {
    if !has_jdk() {
        install::debian_package_unless(PACKAGE, has_jdk)?;
    }
    if !has_jdk() {
        bail!(
            "there is a `java` older than {JAVA_MIN}, or no `javac`, first on the PATH; put a JDK of at least {JAVA_MIN} there"
        );
    }
    Ok(())
}

/// The programs are compiled when they are run, so they need the compiler too. The first release of a Java has a version without dots, which is not
/// understood: it is tried.
fn has_jdk() -> bool {
    find("javac").is_some()
        && find("java").is_some_and(|java| version_of(&java).is_none_or(|version| version.major >= JAVA_MIN))
}
