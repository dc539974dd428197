//! The receiver of notices: a file that stands for a mail service with idempotency keys.
//!
//! Invariant: the file has one line per key, and a line is on disk before its delivery is answered. Several programs may append at the same time, and
//! any of them may be killed while it writes. The file is locked during a write, and the next writer removes an incomplete line.

use std::collections::HashSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use crate::values::Day;

/// A notice to a customer: a line `<key> <order id> <shipped date>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) key: Uuid,
    pub(crate) order_id: i64,
    pub(crate) shipped_date: Day,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            order_id,
            shipped_date,
        } = self;
        write!(f, "{key} {order_id} {shipped_date}")
    }
}

impl FromStr for Notice {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let malformed = || format!("`{}` is no notice", line.escape_debug());
        let [key, order_id, shipped_date] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(malformed());
        };
        Ok(Self {
            key: key.parse().map_err(|_| malformed())?,
            order_id: order_id.parse().map_err(|_| malformed())?,
            shipped_date: shipped_date.parse()?,
        })
    }
}

/// The receiver that writes the file.
#[derive(Debug, Clone)]
pub(crate) struct NoticeFile(Arc<Mutex<Receiver>>);

#[derive(Debug)]
struct Receiver {
    path: PathBuf,
    /// Keys of the lines before `read_bytes`.
    keys: HashSet<Uuid>,
    read_bytes: u64,
}

impl NoticeFile {
    /// A receiver that appends to this file; the first notice creates the file.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(Arc::new(Mutex::new(Receiver {
            path,
            keys: HashSet::new(),
            read_bytes: 0,
        })))
    }

    /// Appends the notice unless its key is already in the file.
    pub(crate) async fn deliver(&self, notice: Notice) -> io::Result<()> {
        let receiver = self.0.clone();
        // This work blocks on the lock and the disk, so it runs outside the threads of the handlers.
        let work = move || {
            receiver
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .deliver(&notice)
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(io::Error::other)?
    }

    /// All notices of a file that no program writes to; none if the file is missing.
    pub(crate) fn read(path: &Path) -> io::Result<Vec<Notice>> {
        match std::fs::read_to_string(path) {
            Ok(text) => text
                .lines()
                .map(|line| line.parse().map_err(io::Error::other))
                .collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The number of complete lines. Other programs may write meanwhile.
    pub(crate) fn count(path: &Path) -> u64 {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.iter().filter(|byte| **byte == b'\n').count() as u64
    }
}

impl Receiver {
    fn deliver(&mut self, notice: &Notice) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path)?;
        // Closing the file releases the lock, even when the process is killed.
        file.lock()?;
        self.catch_up(&mut file)?;
        if self.keys.contains(&notice.key) {
            return Ok(());
        }
        file.write_all(format!("{notice}\n").as_bytes())?;
        // A crash before the sync may leave a partial or a complete line. The repeated delivery finds out which.
        file.sync_data()
    }

    /// Reads the lines that others appended, cuts off an incomplete line, and seeks to the end of the file.
    fn catch_up(&mut self, file: &mut File) -> io::Result<()> {
        let mut text = String::new();
        file.seek(SeekFrom::Start(self.read_bytes))?;
        file.read_to_string(&mut text)?;
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        for line in text[..complete].lines() {
            self.keys
                .insert(line.parse::<Notice>().map_err(io::Error::other)?.key);
        }
        self.read_bytes += complete as u64;
        file.set_len(self.read_bytes)?;
        file.seek(SeekFrom::Start(self.read_bytes))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(order_id: i64) -> Notice {
        Notice {
            key: Uuid::now_v7(),
            order_id,
            shipped_date: "1996-07-16".parse().unwrap(),
        }
    }

    #[tokio::test]
    async fn a_key_gets_one_line_whoever_delivers_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notices.txt");
        let (first, second) = (notice(1), notice(2));
        for _ in 0..2 {
            let (a, b) = (NoticeFile::new(path.clone()), NoticeFile::new(path.clone()));
            a.deliver(first.clone()).await.unwrap();
            b.deliver(second.clone()).await.unwrap();
            a.deliver(second.clone()).await.unwrap();
        }
        assert_eq!(NoticeFile::read(&path).unwrap(), [first, second]);
    }

    #[tokio::test]
    async fn a_line_without_its_end_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notices.txt");
        let (first, second) = (notice(1), notice(2));
        let torn = second.to_string();
        std::fs::write(&path, format!("{first}\n{}", &torn[..20])).unwrap();
        assert_eq!(NoticeFile::count(&path), 1);
        NoticeFile::new(path.clone())
            .deliver(second.clone())
            .await
            .unwrap();
        assert_eq!(NoticeFile::read(&path).unwrap(), [first, second]);
    }
}
