//! A sink of dead letters in memory.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outbox_core::dead_letter::{DeadLetterCopy, DeadLetterSink};
use outbox_core::publisher::{FailureClass, PublishError};

/// A [`DeadLetterSink`] in memory. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct MemoryDeadLetters(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    letters: Vec<DeadLetterCopy>,
    ids: HashSet<String>,
    refusals: usize,
}

impl MemoryDeadLetters {
    /// An empty sink.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The copies received, in order.
    #[must_use]
    pub fn letters(&self) -> Vec<DeadLetterCopy> {
        self.lock().letters.clone()
    }

    /// Refuses the next `copies` copies.
    pub fn refuse(&self, copies: usize) {
        self.lock().refusals = copies;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, letter: &DeadLetterCopy) -> Result<(), PublishError> {
        let mut state = self.lock();
        if state.refusals > 0 {
            state.refusals -= 1;
            let context = "injected fault: the copy was refused";
            return Err(PublishError::new(FailureClass::Transient, context));
        }
        if state.ids.insert(letter.copy_id()) {
            state.letters.push(letter.clone());
        }
        Ok(())
    }
}

impl DeadLetterSink for MemoryDeadLetters {
    fn send<'a>(
        &'a self,
        letter: &'a DeadLetterCopy,
    ) -> Pin<Box<dyn Future<Output = Result<(), PublishError>> + Send + 'a>> {
        Box::pin(std::future::ready(self.take(letter)))
    }
}
