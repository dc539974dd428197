//! The room on the disk that a ledger may take.
//!
//! Invariant: what is taken is counted before a byte of it is written, and given back when its file is closed, also by a ledger that breaks off.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ProofError;

/// Bytes that are read or written at a time.
pub(super) const BLOCK: usize = 64 * 1024;

/// A bound that all files of a ledger share.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    max: u64,
    taken: Arc<AtomicU64>,
}

/// Room that is taken, until it is dropped.
#[derive(Debug)]
struct Room {
    bytes: u64,
    taken: Arc<AtomicU64>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Disk {
    pub(super) fn new(max: u64) -> Self {
        Self {
            max,
            taken: Arc::default(),
        }
    }

    /// A file for so many bytes.
    ///
    /// # Errors
    ///
    /// [`ProofError::NoRoom`] if they are more than is left; then nothing was made.
    pub(super) fn file(&self, bytes: u64) -> Result<Unfinished, ProofError> {
        // One task draws up a ledger, so nobody else takes anything in between.
        let taken = self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let room = Room {
            bytes,
            taken: self.taken.clone(),
        };
        if taken > self.max {
            return Err(ProofError::NoRoom { max: self.max });
        }
        Ok(Unfinished {
            file: BufWriter::with_capacity(BLOCK, tempfile::tempfile()?),
            room,
        })
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

/// A file that is written. It has no name, so nothing is left of it once it is closed.
#[derive(Debug)]
pub(super) struct Unfinished {
    file: BufWriter<File>,
    room: Room,
}

impl Unfinished {
    pub(super) fn write(&mut self, record: &[u8]) -> io::Result<()> {
        self.file.write_all(record)
    }

    /// The file, to be read from its beginning.
    pub(super) fn finish(self) -> io::Result<Written> {
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(Written {
            file,
            room: self.room,
        })
    }
}

/// A file that was written, and the room that it takes.
#[derive(Debug)]
pub(super) struct Written {
    file: File,
    room: Room,
}

impl Written {
    pub(super) fn bytes(&self) -> u64 {
        self.room.bytes
    }
}

impl Read for Written {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}
