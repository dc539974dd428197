//! What moving a consumer would do, before it is done.
//!
//! Invariant: a plan names everything that would take effect again, as far as this program can know. Not here: making plans and carrying them out.

use std::fmt;

use time::OffsetDateTime;

use crate::handler::Strategy;
use crate::router::Router;

/// Which rows of a replayed consumer the inbox keeps, and which it removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// It stays. What it remembers comes again without effect, and only the rest takes effect: for messages that were lost on their way.
    Keep,
    /// It is forgotten, and everything from the start on takes effect again: for effects that were lost, or a table that is to be built anew.
    Forget,
}

/// Rows that the inbox has of a consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryRows {
    /// Messages and business keys that took effect (`inbox_messages`).
    pub handled: u64,
    /// Messages that failed and are tried again (`inbox_messages`).
    pub failed: u64,
    /// Messages that are dead-lettered (`inbox_messages`).
    pub dead: u64,
    /// Numbers of aggregates, of strategy `sequence` (`inbox_sequences`).
    pub sequences: u64,
    /// Dead letters (`inbox_dead_letters`).
    pub dead_letters: u64,
    /// Since when messages that took effect are remembered without a gap: the time of the oldest one. `None` if there is none.
    pub since: Option<OffsetDateTime>,
}

/// What is not remembered: it takes effect a second time if its message comes again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unremembered {
    /// Everything that comes again, because the memory is to be forgotten; and everything that came before, should a copy of it be published again.
    Everything,
    /// Messages that took effect before this time: their rows have expired. Right unless somebody has lowered the inbox's retention since.
    HandledBefore(OffsetDateTime),
    /// Nothing is remembered: there is no row of a message that took effect.
    NoRows,
    /// What these handlers did: strategy `natural` keeps no rows.
    Natural(Vec<&'static str>),
    /// No handler of the consumer is linked into this program, so it is not known whether some have strategy `natural`.
    HandlersUnknown,
}

/// Why a consumer cannot be moved now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The consumer is not paused ([`PausedConsumers::pause`](crate::PausedConsumers::pause)).
    NotPaused(String),
    /// The broker says that a process asks for its messages, although it is paused: a program that does not look at this database.
    Receiving(String),
    /// Transactions of handlers that ran when it was paused have not ended.
    Running(String),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPaused(name) => write!(f, "consumer `{name}` is not paused; pause it first"),
            Self::Receiving(name) => write!(
                f,
                "a process receives messages of consumer `{name}` although it is paused; stop it, or look whether it uses another database"
            ),
            Self::Running(name) => write!(
                f,
                "handlers that began before consumer `{name}` was paused have not ended; wait, or stop their processes"
            ),
        }
    }
}

pub(super) fn sentences(obstacles: &[Obstacle]) -> String {
    let sentences: Vec<_> = obstacles.iter().map(ToString::to_string).collect();
    sentences.join("; ")
}

/// What a replay would do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayPlan {
    /// The consumer.
    pub consumer: String,
    /// What becomes of its memory.
    pub memory: Memory,
    /// The stream sequence that it would begin with.
    pub stream_sequence: u64,
    /// Messages on the stream from there on, that come again or for the first time.
    pub messages: u64,
    /// What the inbox remembers now. With [`Memory::Forget`], all but dead letters is forgotten, and the dead rows of those that do not come again stay.
    pub rows: MemoryRows,
    /// Of the dead letters, those whose messages come again. They stay as well: after their messages were handled, a retry deletes them without a second
    /// effect.
    pub dead_letters_again: u64,
    /// What would take effect a second time.
    pub unremembered: Vec<Unremembered>,
    /// What stands in the way now.
    pub obstacles: Vec<Obstacle>,
}

/// What a replay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// Rows of `inbox_messages` that were forgotten.
    pub messages: u64,
    /// Rows of `inbox_sequences` that were forgotten.
    pub sequences: u64,
}

impl fmt::Display for Unremembered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => write!(f, "everything that comes again takes effect again"),
            Self::HandledBefore(time) => {
                write!(f, "messages that were handled before {time} take effect again")
            }
            Self::NoRows => write!(
                f,
                "nothing is remembered: everything that comes again takes effect"
            ),
            Self::Natural(handlers) => {
                write!(f, "{} (strategy natural) run again", handlers.join(", "))
            }
            Self::HandlersUnknown => write!(
                f,
                "no handler is linked into this program: those of strategy natural may run again"
            ),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, title: &str, lines: impl Iterator<Item = String>) -> fmt::Result {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return Ok(());
    }
    write!(f, "\n{title}:")?;
    lines.try_for_each(|line| write!(f, "\n- {line}"))
}

impl fmt::Display for MemoryRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} handled, {} failed, {} dead, {} sequences, {} dead letters",
            self.handled, self.failed, self.dead, self.sequences, self.dead_letters
        )
    }
}

impl fmt::Display for ReplayPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match self.memory {
            Memory::Keep => "kept",
            Memory::Forget => "forgotten, but for dead letters",
        };
        write!(
            f,
            "consumer `{}` would begin with stream sequence {}, {} messages.\nIts memory ({}) is {memory}.",
            self.consumer, self.stream_sequence, self.messages, self.rows
        )?;
        if self.dead_letters_again > 0 {
            write!(
                f,
                "\nThe messages of {} dead letters come again.",
                self.dead_letters_again
            )?;
        }
        list(
            f,
            "What is not remembered",
            self.unremembered.iter().map(ToString::to_string),
        )?;
        list(f, "In the way", self.obstacles.iter().map(ToString::to_string))
    }
}

/// The strategies of a consumer's handlers, as far as this program knows.
#[derive(Debug, Default)]
pub(super) struct Strategies {
    pub(super) are_known: bool,
    pub(super) natural: Vec<&'static str>,
    /// Whether each handler counts numbers, which are remembered for ever.
    pub(super) all_count: bool,
}

impl Strategies {
    pub(super) fn of(router: &Router, consumer: &str) -> Self {
        let mut strategies = Self {
            all_count: true,
            ..Self::default()
        };
        let handlers = router.handlers().iter();
        for handler in handlers.filter(|handler| handler.consumer == consumer) {
            strategies.are_known = true;
            let strategy = handler.options.strategy;
            strategies.all_count &= matches!(strategy, Strategy::Sequence { .. });
            if matches!(strategy, Strategy::Natural) {
                strategies.natural.push(handler.handler);
            }
        }
        strategies.all_count &= strategies.are_known;
        strategies
    }

    /// What none of the tables remembers, whatever becomes of them.
    pub(super) fn without_rows(&self) -> Vec<Unremembered> {
        let mut unremembered = Vec::new();
        if !self.natural.is_empty() {
            unremembered.push(Unremembered::Natural(self.natural.clone()));
        }
        if !self.are_known {
            unremembered.push(Unremembered::HandlersUnknown);
        }
        unremembered
    }
}
