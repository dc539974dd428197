//! The receiver of notices: a file that simulates a mail service with idempotency keys.
//!
//! Invariant: the file has one line per key, and a line is on disk before its delivery is answered.
//! Several programs may append concurrently and may be killed during a write: the next writer
//! removes an incomplete line.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

#[derive(Debug, Clone)]
pub(crate) struct NoticeFile(pub(crate) PathBuf);

impl NoticeFile {
    /// Appends the line `<key> <text>` unless the key is already in the file.
    pub(crate) async fn deliver(&self, key: Uuid, text: String) -> io::Result<()> {
        let path = self.0.clone();
        tokio::task::spawn_blocking(move || append(&path, key, &text))
            .await
            .map_err(io::Error::other)?
    }

    pub(crate) fn lines(&self) -> io::Result<Vec<String>> {
        match std::fs::read_to_string(&self.0) {
            Ok(text) => Ok(complete(&text).lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

fn complete(text: &str) -> &str {
    &text[..text.rfind('\n').map_or(0, |end| end + 1)]
}

fn append(path: &Path, key: Uuid, line: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(path)?;
    // Closing the file releases the lock, even when the process is killed.
    file.lock()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let (text, key) = (complete(&text), key.to_string());
    if text.lines().any(|line| line.starts_with(&key)) {
        return Ok(());
    }
    let end = text.len() as u64;
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    file.write_all(format!("{key} {line}\n").as_bytes())?;
    // A crash before the sync may leave a partial or a complete line.
    file.sync_data()
}
