//! The private temporary folder of one task.
//!
//! Each folder holds a locked file. If a task is killed, the next task finds the lock free and
//! removes the folder.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::process::{self, RemovedOnExit};
use crate::services::programs::{User, tied_as};

const PREFIX: &str = "outbox-xtask-";
const LOCK: &str = "lock";

#[derive(Debug)]
pub(super) struct Folder {
    removed_on_exit: RemovedOnExit,
    _lock: File,
}

impl Folder {
    pub(super) fn create() -> Result<Self> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        let why = || {
            format!(
                "cannot make a folder in {}; set TMPDIR to a folder with space",
                parent.display()
            )
        };
        // The folder gets its final name only after its lock is taken; until then `sweep` of
        // another task ignores it.
        let new = tempfile::Builder::new()
            .prefix("new-")
            .tempdir_in(&parent)
            .with_context(why)?;
        let lock = File::create_new(new.path().join(LOCK)).with_context(why)?;
        lock.try_lock().with_context(why)?;
        // A server's user must pass through the folder, but not list it.
        fs::set_permissions(new.path(), Permissions::from_mode(0o711)).with_context(why)?;
        let unique = new.path().file_name().unwrap_or_default().to_string_lossy();
        let path = parent.join(unique.replace("new-", PREFIX));
        fs::rename(new.path(), &path).with_context(why)?;
        let _ = new.keep();
        Ok(Self {
            removed_on_exit: RemovedOnExit::new(path),
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.removed_on_exit.path()
    }

    pub(super) fn home(&self, name: &str, user: Option<User>) -> Result<PathBuf> {
        let path = self.path().join(name);
        let why = || format!("cannot make {}", path.display());
        fs::create_dir(&path).with_context(why)?;
        fs::set_permissions(&path, Permissions::from_mode(0o700)).with_context(why)?;
        if let Some(user) = user {
            chown(&path, Some(user.uid), Some(user.gid)).with_context(why)?;
        }
        // The server's user may lack access to a parent folder, for example to a private temporary
        // folder.
        let entered = tied_as(Path::new("true"), user).current_dir(&path).status();
        entered.with_context(|| format!("the server's user may not enter {}; set TMPDIR", path.display()))?;
        Ok(path)
    }
}

fn sweep(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        let user = rustix::process::geteuid().as_raw();
        let is_own = entry.metadata().is_ok_and(|metadata| metadata.uid() == user);
        let lock = File::open(entry.path().join(LOCK));
        if is_own && lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            process::remove_folder(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_removed_with_its_owner() {
        let folder = Folder::create().unwrap();
        let path = folder.path().to_path_buf();
        drop(Folder::create().unwrap());
        assert!(path.exists());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn folder_without_owner_is_removed_by_the_next_task() {
        let parent = tempfile::tempdir().unwrap();
        let orphan = parent.path().join(format!("{PREFIX}orphan"));
        let stranger = parent.path().join("stranger");
        for folder in [&orphan, &stranger] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join(LOCK), "").unwrap();
        }
        sweep(parent.path());
        assert!(!orphan.exists() && stranger.exists());
    }
}
