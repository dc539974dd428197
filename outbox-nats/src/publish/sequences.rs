//! Caches the stream sequence of each aggregate's last message, for strong mode. Memory is bounded.

use std::collections::HashMap;
use std::mem;

/// Maximum number of aggregates whose stream sequence is cached, about 20 MB with long ids. An
/// aggregate that is not cached costs a request.
const STREAM_SEQUENCES_MAX: usize = 65_536;

/// The cache has two generations: the older is dropped when the younger is full.
#[derive(Debug, Default)]
pub(crate) struct StreamSequences {
    young: HashMap<String, u64>,
    old: HashMap<String, u64>,
}

impl StreamSequences {
    pub(crate) fn get(&self, subject: &str) -> Option<u64> {
        self.young.get(subject).or_else(|| self.old.get(subject)).copied()
    }

    pub(crate) fn set(&mut self, subject: &str, stream_sequence: u64) {
        if let Some(known) = self.young.get_mut(subject) {
            *known = stream_sequence;
            return;
        }
        if self.young.len() >= STREAM_SEQUENCES_MAX / 2 {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(subject.to_owned(), stream_sequence);
    }

    pub(crate) fn forget(&mut self, subject: &str) {
        self.young.remove(subject);
        self.old.remove(subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_is_bounded_and_keeps_recent_stream_sequences() {
        let mut stream_sequences = StreamSequences::default();
        for n in 0..200_000_u64 {
            stream_sequences.set(&n.to_string(), n);
            assert!(stream_sequences.young.len() + stream_sequences.old.len() <= STREAM_SEQUENCES_MAX);
        }
        assert_eq!(stream_sequences.get("199999"), Some(199_999));
        assert_eq!(stream_sequences.get("1"), None);
        stream_sequences.forget("199999");
        assert_eq!(stream_sequences.get("199999"), None);
    }
}
