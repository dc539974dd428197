//! Sorts any number of records of one size in bounded memory: runs go to temporary files, and are merged.
//!
//! Invariants: at most `capacity` records are in memory while records come, and a block of 64 KiB for each run while they are merged, of which there are 64 at
//! most. On the disk a record is once, and twice while 64 runs become one. Temporary files have no names, so nothing is left of them. Reading and writing block the thread, for the time of the disk.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read as _, Seek as _, Write as _};

use super::ProofError;

/// Bytes that are read or written at a time.
const BLOCK: usize = 64 * 1024;

/// Runs that are merged at a time.
const RUNS_MAX: usize = 64;

/// Collects records, in any order.
#[derive(Debug)]
pub(super) struct Sorter<const N: usize> {
    capacity: usize,
    chunk: Vec<[u8; N]>,
    runs: Vec<File>,
    held_max: usize,
}

impl<const N: usize> Sorter<N> {
    /// A sorter that holds so many records in memory, and the rest in temporary files.
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            capacity,
            // At once, because a vector that grows holds up to three times as much while it moves.
            chunk: Vec::with_capacity(capacity),
            runs: Vec::new(),
            held_max: 0,
        }
    }

    /// The largest number of records that were in memory at a time.
    pub(super) fn held_max(&self) -> usize {
        self.held_max
    }

    pub(super) fn push(&mut self, record: [u8; N]) -> Result<(), ProofError> {
        if self.chunk.len() == self.capacity {
            self.spill()?;
        }
        self.chunk.push(record);
        self.held_max = self.held_max.max(self.chunk.len());
        Ok(())
    }

    /// The records in their order.
    pub(super) fn sorted(mut self) -> Result<Merge<N>, ProofError> {
        if self.runs.is_empty() {
            self.chunk.sort_unstable();
            return Ok(Merge {
                runs: vec![Run::Memory(self.chunk.into_iter())],
                heads: BinaryHeap::new(),
                is_begun: false,
            });
        }
        self.spill()?;
        Ok(Merge::of(self.runs))
    }

    fn spill(&mut self) -> Result<(), ProofError> {
        self.chunk.sort_unstable();
        let mut file = run()?;
        for record in self.chunk.drain(..) {
            file.write_all(&record)?;
        }
        self.runs.push(finished(file)?);
        if self.runs.len() == RUNS_MAX {
            let mut file = run()?;
            let mut merge: Merge<N> = Merge::of(std::mem::take(&mut self.runs));
            while let Some(record) = merge.next()? {
                file.write_all(&record)?;
            }
            self.runs.push(finished(file)?);
        }
        Ok(())
    }
}

fn run() -> io::Result<BufWriter<File>> {
    Ok(BufWriter::with_capacity(BLOCK, tempfile::tempfile()?))
}

/// The file, to be read from its beginning.
fn finished(run: BufWriter<File>) -> io::Result<File> {
    let mut file = run.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

#[derive(Debug)]
enum Run<const N: usize> {
    Memory(std::vec::IntoIter<[u8; N]>),
    File(BufReader<File>),
}

impl<const N: usize> Run<N> {
    fn next(&mut self) -> io::Result<Option<[u8; N]>> {
        match self {
            Self::Memory(records) => Ok(records.next()),
            Self::File(file) => {
                let mut record = [0; N];
                match file.read_exact(&mut record) {
                    Ok(()) => Ok(Some(record)),
                    // Runs hold whole records.
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

/// Gives sorted records.
#[derive(Debug)]
pub(super) struct Merge<const N: usize> {
    runs: Vec<Run<N>>,
    heads: BinaryHeap<Reverse<([u8; N], usize)>>,
    is_begun: bool,
}

impl<const N: usize> Merge<N> {
    fn of(files: Vec<File>) -> Self {
        let runs = files
            .into_iter()
            .map(|file| Run::File(BufReader::with_capacity(BLOCK, file)));
        Self {
            runs: runs.collect(),
            heads: BinaryHeap::new(),
            is_begun: false,
        }
    }

    pub(super) fn next(&mut self) -> io::Result<Option<[u8; N]>> {
        if !self.is_begun {
            self.is_begun = true;
            for (index, run) in self.runs.iter_mut().enumerate() {
                if let Some(record) = run.next()? {
                    self.heads.push(Reverse((record, index)));
                }
            }
        }
        let Some(Reverse((record, index))) = self.heads.pop() else {
            return Ok(None);
        };
        if let Some(run) = self.runs.get_mut(index)
            && let Some(next) = run.next()?
        {
            self.heads.push(Reverse((next, index)));
        }
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in an order of chance, the same in each run.
    fn numbers(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40)
    }

    fn sorts(count: u64, capacity: usize) {
        let mut sorter = Sorter::new(capacity);
        for number in numbers(count) {
            sorter.push(number.to_be_bytes()).unwrap();
        }
        assert!(sorter.held_max() <= capacity);
        let mut expected: Vec<u64> = numbers(count).collect();
        expected.sort_unstable();
        let mut merge = sorter.sorted().unwrap();
        for number in expected {
            assert_eq!(merge.next().unwrap(), Some(number.to_be_bytes()));
        }
        assert_eq!(merge.next().unwrap(), None);
    }

    #[test]
    fn records_are_sorted_in_memory_in_runs_and_in_runs_of_runs() {
        sorts(0, 3);
        sorts(3, 3);
        sorts(4, 3);
        sorts(10_000, 1_000);
        // More runs than are merged at a time, twice.
        sorts(10_000, 70);
    }
}
