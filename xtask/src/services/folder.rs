//! The temporary folder of one task, private to it and removed with it.
//!
//! A task that was killed cannot remove its folder, so the next one does: each folder holds a locked file, and a folder
//! whose lock is free has no owner. Nothing else in the system's temporary folder is touched.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::process::{self, RemovedOnExit};
use crate::services::programs::{User, tied_as};

const PREFIX: &str = "outbox-xtask-";
const LOCK: &str = "lock";

/// A folder that vanishes when it is dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _removed_on_exit: RemovedOnExit,
    _lock: File,
}

impl Folder {
    pub(crate) fn create() -> Result<Self> {
        let parent = std::env::temp_dir();
        let why = || {
            format!(
                "cannot make a temporary folder in {}; set TMPDIR to one with space",
                parent.display()
            )
        };
        sweep(&parent);
        // The folder gets its final name only with its lock held; until then `sweep` of another task ignores it.
        let unnamed = tempfile::Builder::new()
            .prefix("new-")
            .tempdir_in(&parent)
            .with_context(why)?;
        let lock = File::create_new(unnamed.path().join(LOCK)).with_context(why)?;
        lock.try_lock().with_context(why)?;
        // Servers may run as another user, who has to pass through but not to look around.
        fs::set_permissions(unnamed.path(), Permissions::from_mode(0o711)).with_context(why)?;
        let unique = unnamed
            .path()
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let path = parent.join(format!("{PREFIX}{}", unique.trim_start_matches("new-")));
        fs::rename(unnamed.path(), &path).with_context(why)?;
        let removed_on_exit = RemovedOnExit::new(&path);
        // It no longer exists under its first name.
        let _ = unnamed.keep();
        Ok(Self {
            path,
            _removed_on_exit: removed_on_exit,
            _lock: lock,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a folder below this one which `owner` may write to.
    pub(crate) fn subfolder(&self, name: &str, owner: Option<User>) -> Result<PathBuf> {
        let path = self.path.join(name);
        let why = || format!("cannot make {}", path.display());
        fs::create_dir(&path).with_context(why)?;
        fs::set_permissions(&path, Permissions::from_mode(0o700)).with_context(why)?;
        if let Some(owner) = owner {
            chown(&path, Some(owner.uid), Some(owner.gid)).with_context(why)?;
        }
        Ok(path)
    }
}

/// Removes folders of tasks that were killed.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|metadata| {
                metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw()
            });
        if !is_ours {
            continue;
        }
        let Ok(lock) = File::open(entry.path().join(LOCK)) else {
            continue;
        };
        if lock.try_lock().is_ok() {
            process::remove_folder(&entry.path());
        }
    }
}

/// Makes the folder of a server that runs as `user`.
pub(super) fn home(folder: &Folder, name: &str, user: Option<User>) -> Result<PathBuf> {
    let home = folder.subfolder(name, user)?;
    // Owning a folder is not enough where one above it is closed, as private temporary folders are.
    let enters = tied_as(Path::new("true"), user).current_dir(&home).status();
    enters.map(|_| home).with_context(|| {
        let user = user.map_or("this user", |user| user.name);
        let folder = folder.path().display();
        format!("{user} may not enter {folder}; set TMPDIR to a folder that all users may enter")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_lives_as_long_as_its_owner() {
        let folder = Folder::create().unwrap();
        let path = folder.path().to_path_buf();
        fs::write(path.join("file"), "x").unwrap();
        // Another task starting now must leave it alone.
        drop(Folder::create().unwrap());
        assert!(path.join("file").exists());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_without_owner_is_removed_by_the_next_task() {
        let parent = tempfile::tempdir().unwrap();
        let orphan = parent.path().join(format!("{PREFIX}orphan"));
        let stranger = parent.path().join("stranger");
        for folder in [&orphan, &stranger] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join(LOCK), "").unwrap();
        }
        sweep(parent.path());
        assert!(!orphan.exists());
        assert!(stranger.exists());
    }
}
