//! The set of handlers of an inbox.
//!
//! Invariant: each (consumer, event type, version) has one handler, and the router has every state
//! that its handlers require.

use std::any::TypeId;
use std::collections::BTreeMap;

use crate::handler::{Handler, RecordsEvents, Registration, StateMap};
use crate::preflight;
use crate::start_error::{Problem, StartError};

const CONSUMER_BYTES_MAX: usize = 64;

/// A set of handlers.
///
/// Within a consumer, each message has one handler: the handler of its event type and version (also
/// after an upcast). If the event type has no handler in any version, the narrowest matching
/// `messages` key runs: `"order.placed"` before `"order.*"` before `"*"`.
///
/// ```standalone_crate
/// # use outbox_core::DomainEvent;
/// # #[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
/// # #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// use outbox_inbox::{Event, HandlerError, Router, idempotent_handler};
///
/// #[idempotent_handler(consumer = "inventory")]
/// async fn reserve_stock(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
///     Ok(())
/// }
///
/// // All handlers of all linked crates (the default of an `Inbox`) …
/// assert_eq!(Router::registered().consumers(), ["inventory"]);
/// // … or only the named handlers.
/// assert_eq!(Router::new().handler::<reserve_stock>().consumers(), ["inventory"]);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Router {
    handlers: Vec<Registration>,
}

impl Router {
    /// Creates an empty router.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns all handlers linked into this program. The linker drops unreferenced crates: name
    /// them with [`link_handlers!`](crate::link_handlers).
    #[must_use]
    pub fn registered() -> Self {
        let mut handlers: Vec<_> = inventory::iter::<Registration>.into_iter().copied().collect();
        handlers.sort_by_key(|handler| (handler.consumer, handler.file, handler.line, handler.handler));
        handlers.into_iter().fold(Self::new(), Self::with)
    }

    /// Adds a handler. Adding a handler twice changes nothing.
    #[must_use]
    pub fn handler<H: Handler>(self) -> Self {
        self.with(H::REGISTRATION)
    }

    fn with(mut self, handler: Registration) -> Self {
        if !self.handlers.iter().any(|known| known.is_same(&handler)) {
            self.handlers.push(handler);
        }
        self
    }

    /// Returns the handlers in the order of addition.
    #[must_use]
    pub fn handlers(&self) -> &[Registration] {
        &self.handlers
    }

    /// Returns the sorted names of consumers with handlers.
    #[must_use]
    pub fn consumers(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.handlers.iter().map(|handler| handler.consumer).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    pub(crate) fn missing(&self, expected: &[String]) -> Vec<Problem> {
        let is_there = |name: &str| {
            self.handlers.iter().any(|handler| {
                let below = handler.handler.strip_prefix(name);
                handler.consumer == name
                    || below.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            })
        };
        let missing = expected.iter().filter(|name| !is_there(name));
        let linked: Vec<_> = self.handlers.iter().map(|handler| handler.handler).collect();
        let not_linked = |name: &String| {
            Problem::new(format!(
                "no handler of `{name}` is linked into this program; link its crate with \
                 `outbox::inbox::link_handlers!(…)` (or `outbox_inbox::link_handlers!`); linked: {}",
                listed(&linked)
            ))
        };
        missing.map(not_linked).collect()
    }

    pub(crate) fn unknown(&self, name: &str) -> Option<Problem> {
        let available = self.consumers();
        let unknown = || {
            let text = format!(
                "consumer `{name}` has no handlers in this program; consumers with handlers: {}",
                listed(&available)
            );
            Problem::new(text)
        };
        (!available.contains(&name)).then(unknown)
    }

    pub(crate) fn only(&self, consumers: &[String]) -> Self {
        let wanted = |handler: &&Registration| consumers.iter().any(|name| name == handler.consumer);
        Self {
            handlers: self.handlers.iter().filter(wanted).copied().collect(),
        }
    }

    /// Checks that the handlers are consistent and that `state` contains their state, as
    /// [`Inbox::run`](crate::Inbox::run) does first.
    ///
    /// # Errors
    ///
    /// [`StartError`] with all problems found.
    pub fn check(&self, state: &StateMap) -> Result<(), StartError> {
        StartError::unless_empty(self.problems(state))
    }

    pub(crate) fn problems(&self, state: &StateMap) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.handlers.is_empty() {
            problems.push(Problem::new(
                "no handlers are linked into this program; link their crates with \
                 `outbox::inbox::link_handlers!(my_handlers)` (or `outbox_inbox::link_handlers!`), or list \
                 the handlers with `Router::new().handler::<my_handler>()`",
            ));
        }
        let mut by_event: BTreeMap<(&str, String, u32), &Registration> = BTreeMap::new();
        for handler in &self.handlers {
            if !is_consumer_name(handler.consumer) {
                problems.push(Problem::new(format!(
                    "consumer `{}` of handler {handler} is malformed; use 1 to 64 of the characters `A-Z a-z 0-9 _ -`",
                    handler.consumer.escape_debug()
                )));
            }
            for event in handler.events.iter().filter(|event| !event.is_selection()) {
                let key = (handler.consumer, event.event_type(), event.version);
                if let Some(first) = by_event.insert(key, handler) {
                    let place = |handler: &Registration| (handler.file, handler.line);
                    let (first, second) = if place(first) <= place(handler) {
                        (first, handler)
                    } else {
                        (handler, first)
                    };
                    problems.push(Problem::new(format!(
                        "event `{}` version {} has two handlers in consumer `{}`: {first} and {second}; use \
                         another `consumer` for one handler",
                        event.event_type(),
                        event.version,
                        handler.consumer
                    )));
                }
            }
            for requirement in handler.requires.iter().flatten() {
                let id = (requirement.id)();
                if id != TypeId::of::<RecordsEvents>() && !state.contains(id) {
                    problems.push(Problem::new(format!(
                        "handler {handler} needs `HandlerState<{}>`; provide it with `Inbox::with_state`",
                        (requirement.name)()
                    )));
                }
            }
        }
        problems.extend(preflight::options(&self.handlers));
        problems
    }
}

fn listed(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        names => format!("`{}`", names.join("`, `")),
    }
}

fn is_consumer_name(name: &str) -> bool {
    (1..=CONSUMER_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Links otherwise unreferenced handler crates for [`Router::registered`].
///
/// ```
/// // `outbox_core` stands for your crate with handlers.
/// outbox_inbox::link_handlers!(outbox_core);
/// ```
#[macro_export]
macro_rules! link_handlers {
    ($($krate:ident),+ $(,)?) => {
        $(use $krate as _;)+
    };
}
