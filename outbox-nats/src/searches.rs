//! How far the subjects of messages were searched.
//!
//! Invariant: progress is kept in this process only; after a restart a search begins again.

use std::collections::HashMap;

use outbox_core::MessageId;

/// Most searches whose progress is kept. Each belongs to an aggregate that waits for it, so more than a few are rare.
const SEARCHES_MAX: usize = 1_024;

/// How far the subjects of messages were searched without finding them.
#[derive(Debug, Default)]
pub(crate) struct Searches(HashMap<MessageId, Searched>);

#[derive(Debug)]
struct Searched {
    /// The stream that was searched.
    made_at: String,
    /// The message is not on its subject up to this stream sequence.
    until: u64,
}

impl Searches {
    pub(crate) fn forget(&mut self, id: MessageId) {
        if !self.0.is_empty() {
            self.0.remove(&id);
        }
    }

    /// The stream sequence behind which the search goes on.
    pub(crate) fn until(&self, id: MessageId, made_at: &str) -> Option<u64> {
        let searched = self.0.get(&id).filter(|searched| searched.made_at == made_at)?;
        Some(searched.until)
    }

    pub(crate) fn note(&mut self, id: MessageId, made_at: &str, until: u64) {
        if let Some(searched) = self.0.get_mut(&id)
            && searched.made_at == made_at
        {
            searched.until = searched.until.max(until);
            return;
        }
        if self.0.len() >= SEARCHES_MAX {
            // Searches that are under way begin anew. This costs time and nothing else.
            self.0.clear();
        }
        let made_at = made_at.to_owned();
        self.0.insert(id, Searched { made_at, until });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_belongs_to_a_message_and_a_stream() {
        let (one, other) = (MessageId::fresh(), MessageId::fresh());
        let mut searches = Searches::default();
        searches.note(one, "then", 7);
        searches.note(one, "then", 5);
        assert_eq!(searches.until(one, "then"), Some(7));
        assert_eq!(searches.until(other, "then"), None);
        assert_eq!(searches.until(one, "later"), None, "the stream was made anew");
        searches.note(one, "later", 2);
        assert_eq!(searches.until(one, "later"), Some(2));
        searches.forget(one);
        assert_eq!(searches.until(one, "later"), None);
    }

    #[test]
    fn progress_of_many_messages_is_bounded() {
        let mut searches = Searches::default();
        for until in 0..3_000 {
            searches.note(MessageId::fresh(), "then", until);
        }
        assert!(searches.0.len() <= SEARCHES_MAX);
    }
}
