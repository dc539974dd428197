//! The reasons why an inbox cannot start, as far as they can be known before the first message.
//!
//! Invariant: all problems are reported at once, each with the next step. Not here: finding them, see [`crate::router`],
//! [`crate::config`], [`crate::preflight`], [`crate::rights`] and [`crate::upcast`].

use std::fmt;
use std::time::Duration;

use outbox_sea_orm::{NameError, UnfitSetting};

use crate::handler::Registration;

/// Why an inbox cannot start: all problems, not only the first.
///
/// `Debug` shows the same text as `Display`, because a `main` that returns the error prints it by `Debug`.
pub struct StartError {
    problems: Vec<Problem>,
}

impl StartError {
    pub(crate) fn unless_empty(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Self { problems })
        }
    }

    /// The problems, at least one.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [problem] => problem.fmt(f),
            problems => {
                write!(f, "{} problems", problems.len())?;
                problems
                    .iter()
                    .enumerate()
                    .try_for_each(|(index, problem)| write!(f, "\n{}. {problem}", index + 1))
            }
        }
    }
}

impl std::error::Error for StartError {}

/// One reason why an inbox cannot start.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Row-level security filters the rows of a table for this login, so repeated messages would be handled again.
    #[error(
        "row-level security hides rows of {table} from this login; let a superuser run `ALTER ROLE … BYPASSRLS` for it, or the owner \
         `ALTER TABLE {table} DISABLE ROW LEVEL SECURITY`"
    )]
    RowSecurity {
        /// The table.
        table: String,
    },
    /// There is nothing to run.
    #[error(
        "no handlers are linked into this program; name the crates that hold them with `outbox::inbox::link_handlers!(my_handlers)` (or `outbox_inbox::link_handlers!`), \
         or list the handlers with `Router::new().handler::<my_handler>()`"
    )]
    NoHandlers,
    /// The PostgreSQL database is not UTF8 and cannot store all texts of messages and errors.
    #[error(
        "the database has the encoding {encoding}, which cannot store all texts of messages and errors; use a database with the encoding UTF8: `CREATE DATABASE … \
         ENCODING 'UTF8' TEMPLATE template0`"
    )]
    Encoding {
        /// The encoding, as PostgreSQL calls it.
        encoding: String,
    },
    /// The pool can lose its in-memory database of SQLite.
    #[error("{}", outbox_sea_orm::CAN_BE_LOST)]
    InMemory,
    /// Two handlers of one consumer want the same event; one message has one inbox row, so only one of them could run.
    #[error(
        "event `{event_type}` version {event_version} has two handlers in consumer `{}`: {first} and {second}; give one of them \
         another `consumer`", first.consumer
    )]
    DuplicateHandlers {
        /// The event type.
        event_type: String,
        /// Its version.
        event_version: u32,
        /// The one that stands first by file and line.
        first: Registration,
        /// The other one.
        second: Registration,
    },
    /// A handler takes `HandlerState<T>`, and no `T` was provided.
    #[error("handler {handler} needs `HandlerState<{rust_type}>`; provide it with `Inbox::with_state`")]
    MissingState {
        /// The handler.
        handler: Registration,
        /// The type.
        rust_type: &'static str,
    },
    /// A consumer's name cannot be a name on the broker.
    #[error("consumer `{}` of handler {handler} is malformed; use 1 to 64 of the characters `A-Z a-z 0-9 _ -`", handler.consumer.escape_debug())]
    ConsumerName {
        /// The handler.
        handler: Registration,
    },
    /// A consumer that is to run here has no handlers.
    #[error(
        "consumer `{name}` has no handlers in this program; there are {}",
        list(available)
    )]
    UnknownConsumer {
        /// The name.
        name: String,
        /// Consumers that have handlers.
        available: Vec<&'static str>,
    },
    /// Something that [`Inbox::expect_handlers`](crate::Inbox::expect_handlers) names has no handler in this program.
    #[error(
        "no handler of `{name}` is linked into this program; name its crate with `outbox::inbox::link_handlers!(…)` (or `outbox_inbox::link_handlers!`); \
         linked are {}",
        list(linked)
    )]
    NotLinked {
        /// The crate, module, handler or consumer.
        name: String,
        /// The handlers that are linked.
        linked: Vec<&'static str>,
    },
    /// A step between versions whose types do not describe one event type in versions n and n + 1.
    #[error(
        "upcaster at {place} leads from {old} to {new}; use types of one event type in versions n and n + 1, or `Upcasters::json`"
    )]
    UpcasterTypes {
        /// What the first type describes.
        old: String,
        /// What the second type describes.
        new: String,
        /// Where the step is added: file, line, column.
        place: String,
    },
    /// Two steps from one version.
    #[error(
        "event `{event_type}` has two upcasters from version {from}: at {first} and {second}; remove one of them"
    )]
    DuplicateUpcaster {
        /// The event type.
        event_type: String,
        /// The version they start from.
        from: u32,
        /// Where the first is added.
        first: String,
        /// Where the second is added.
        second: String,
    },
    /// A chain of steps ends below the version that a handler wants.
    #[error(
        "upcaster of `{event_type}` from version {from} to {} is missing: there is one from an earlier version ({place}), and handler {handler} \
         of consumer `{}` handles a later one; add it with `Upcasters::step`", from + 1, handler.consumer
    )]
    MissingUpcaster {
        /// The event type.
        event_type: String,
        /// The version that it must start from.
        from: u32,
        /// A handler that it would lead to.
        handler: Registration,
        /// Where a step is added that leads up to it.
        place: String,
    },
    /// A step that leads to no handler.
    #[error(
        "upcaster of `{event_type}` from version {from} at {place} leads to no handler; remove it, or handle a later version"
    )]
    UnusedUpcaster {
        /// The event type.
        event_type: String,
        /// The version it starts from.
        from: u32,
        /// Where it is added.
        place: String,
    },
    /// An option of a handler cannot work.
    #[error("{option} of handler {handler} {wrong}")]
    Option {
        /// The handler.
        handler: Registration,
        /// The option, as it is written in the attribute.
        option: &'static str,
        /// What is wrong, and what to do.
        wrong: String,
    },
    /// Handlers of one consumer want different orders.
    #[error(
        "handlers of consumer `{}` disagree on `order`: {first} has {:?} and {second} has {:?}; give all of them the same `order`, or one of \
         them another `consumer`", first.consumer, first.options.order, second.options.order
    )]
    Orders {
        /// The first one.
        first: Registration,
        /// One that disagrees.
        second: Registration,
    },
    /// A handler counts sequences of aggregates whose other events are handled without counting: to the one those would be missing.
    #[error(
        "handlers of aggregate `{aggregate}` in consumer `{}` mix strategies: {sequence} has `sequence` and {other} has not; give both \
         `sequence`, or one of them another `consumer`", sequence.consumer
    )]
    MixedSequence {
        /// Type of the aggregate.
        aggregate: &'static str,
        /// The one that counts.
        sequence: Registration,
        /// The one that does not.
        other: Registration,
    },
    /// The inbox would forget messages that the stream can still deliver.
    #[error(
        "the stream keeps messages for {of_stream:?}, the inbox forgets what it handled after {of_inbox:?}, so a replay in between would take effect again; \
         set `InboxConfig::retention` to at least {needed:?}, or a shorter `max_age` on the stream, or use strategy `sequence` or `natural` for \
         handler {handler} and its like"
    )]
    RetentionTooShort {
        /// The stream's, [`StreamFacts::retention`](outbox_core::StreamFacts#structfield.retention).
        of_stream: Duration,
        /// The inbox's, [`InboxConfig::retention`](crate::InboxConfig#structfield.retention).
        of_inbox: Duration,
        /// What the inbox's must be at least.
        needed: Duration,
        /// A handler that relies on it.
        handler: Registration,
    },
    /// The role of the database connection lacks rights on a table of the inbox or the outbox.
    #[error("role {role} lacks rights on `{table}`; run `GRANT {rights} ON {table} TO {role}`")]
    Rights {
        /// The table.
        table: String,
        /// What is missing, as in a `GRANT`.
        rights: String,
        /// The role, as in a `GRANT`.
        role: String,
    },
    /// A handler records events, and a table of the outbox is missing or cannot be looked at.
    #[error(
        "handler {handler} records events, and table `{table}` of the outbox cannot be used ({reason}); run the migration (`outbox::migrate(&db)`, \
         `outbox_sea_orm::migrate(&db)`, or the SQL in docs/sql), or name the tables with `Inbox::with_outbox`"
    )]
    OutboxTable {
        /// The table.
        table: String,
        /// A handler that records.
        handler: Registration,
        /// What the database says.
        reason: String,
    },
    /// The server only speaks the protocol of PostgreSQL or MySQL.
    #[error(
        "the server is {engine} ({version}), which was not tested and may lack locks or isolation that the inbox relies on; use PostgreSQL, MySQL, MariaDB \
         or SQLite, or allow it with `InboxConfig::allow_untested_engine`"
    )]
    UntestedEngine {
        /// The engine.
        engine: &'static str,
        /// What the server says of its version.
        version: String,
    },
    /// A setting of the database's sessions gives statements another meaning.
    #[error("{0}")]
    UnfitSetting(UnfitSetting),
    /// The database cannot hold tables of these names.
    #[error(transparent)]
    Names(#[from] NameError),
    /// A setting cannot work.
    #[error("inbox configuration: {0}")]
    Config(String),
}

fn list(names: &[&str]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names
        .iter()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ")
}
