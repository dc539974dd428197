//! Records asynchronous server reports: the connection state and denied permissions.
//!
//! Without these reports, a denied publish would only time out. Invariants: memory is bounded.
//! Denials are cleared at the next connection, because permissions change.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_nats::{Event, ServerError};
use tokio::sync::watch;
use tokio::time::Instant;

const SUBJECTS_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct Reports {
    denied: Mutex<Denied>,
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Denied {
    /// Time of the last denied publish, by subject.
    publish: HashMap<String, Instant>,
    subscribe: Vec<String>,
}

impl Denied {
    fn add(&mut self, denial: Denial) -> bool {
        match denial {
            Denial::Publish(subject) => {
                if self.publish.len() >= SUBJECTS_MAX {
                    self.publish.clear();
                }
                self.publish.insert(subject, Instant::now()).is_none()
            }
            Denial::Subscribe(subject) => {
                let is_new = !self.subscribe.contains(&subject);
                if is_new && self.subscribe.len() < SUBJECTS_MAX {
                    self.subscribe.push(subject);
                }
                is_new
            }
        }
    }
}

impl Reports {
    pub(crate) fn new() -> Self {
        Self {
            denied: Mutex::default(),
            changes: watch::Sender::new(()),
        }
    }

    /// Records an event. Returns whether a denial is new; `None` for any other event.
    pub(crate) fn record(&self, event: &Event) -> Option<bool> {
        let is_new = match event {
            Event::Connected => {
                *self.denied() = Denied::default();
                None
            }
            _ => Some(self.denied().add(Denial::of(event)?)),
        };
        self.changes.send_replace(());
        is_new
    }

    pub(crate) fn watch(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Resolves when a server denies publishing on a subject at `since` or later. Create `changes`
    /// before publishing.
    pub(crate) async fn denied_since(&self, subject: &str, since: Instant, mut changes: watch::Receiver<()>) {
        while changes.changed().await.is_ok() {
            if self.denied().publish.get(subject).is_some_and(|at| *at >= since) {
                return;
            }
        }
    }

    pub(crate) fn is_denied(&self, subject: &str) -> bool {
        self.denied().publish.contains_key(subject)
    }

    pub(crate) fn denied_under(&self, prefix: &str) -> Option<String> {
        let denied = self.denied();
        denied
            .publish
            .keys()
            .find(|subject| subject.starts_with(prefix))
            .cloned()
    }

    pub(crate) fn denied_inbox(&self, inbox_prefix: &str) -> Option<String> {
        let denied = self.denied();
        let inbox = denied
            .subscribe
            .iter()
            .find(|subject| subject.starts_with(inbox_prefix))?;
        Some(inbox.clone())
    }

    fn denied(&self) -> MutexGuard<'_, Denied> {
        self.denied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A denied permission, with the subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denial {
    /// The server denies publishing on a subject.
    Publish(String),
    /// The server denies subscribing to a subject.
    Subscribe(String),
}

impl Denial {
    /// The denial in an event, such as `Permissions Violation for Publish to "events.x"`. In the
    /// protocol, only this text marks a denial.
    #[must_use]
    pub fn of(event: &Event) -> Option<Self> {
        let Event::ServerError(ServerError::Other(reason)) = event else {
            return None;
        };
        let lower = reason.to_ascii_lowercase();
        let what = lower.strip_prefix("permissions violation for ")?;
        let quoted = reason.split_once('"')?.1;
        let (subject, _) = quoted.split_once("\" using queue").or(quoted.rsplit_once('"'))?;
        let subject = subject.replace("\\\"", "\"").replace("\\\\", "\\");
        if what.starts_with("publish ") {
            Some(Self::Publish(subject))
        } else if what.starts_with("subscription ") {
            Some(Self::Subscribe(subject))
        } else {
            None
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publish(subject) => write!(f, "publish on `{subject}`"),
            Self::Subscribe(subject) => write!(f, "subscribe to `{subject}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(reason: &str) -> Event {
        Event::ServerError(ServerError::Other(reason.to_owned()))
    }

    #[test]
    fn denials_are_recognised() {
        for (reason, expected) in [
            (
                r#"Permissions Violation for Publish to "events.order.1.placed""#,
                Some("publish on `events.order.1.placed`"),
            ),
            (
                r#"permissions violation for publish to "a.\"b\"""#,
                Some("publish on `a.\"b\"`"),
            ),
            (
                r#"Permissions Violation for Subscription to "_INBOX.x.*""#,
                Some("subscribe to `_INBOX.x.*`"),
            ),
            (
                r#"Permissions Violation for Subscription to "a.b" using queue "q""#,
                Some("subscribe to `a.b`"),
            ),
            ("Stale Connection", None),
            (r#"no such thing as "a""#, None),
        ] {
            let denial = Denial::of(&violation(reason)).map(|denial| denial.to_string());
            assert_eq!(denial.as_deref(), expected, "{reason}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn earlier_denial_does_not_count() {
        let reports = Reports::new();
        reports.record(&violation(r#"Permissions Violation for Publish to "a""#));
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        let denied = reports.denied_since("a", Instant::now(), reports.watch());
        tokio::pin!(denied);
        assert!(futures_util::poll!(&mut denied).is_pending());
        reports.record(&violation(r#"Permissions Violation for Publish to "b""#));
        assert!(futures_util::poll!(&mut denied).is_pending(), "another subject");
        reports.record(&violation(r#"Permissions Violation for Publish to "a""#));
        assert!(futures_util::poll!(&mut denied).is_ready());
    }

    #[test]
    fn denials_are_bounded_and_cleared_on_reconnection() {
        let reports = Reports::new();
        for n in 0..3 * SUBJECTS_MAX {
            reports.record(&violation(&format!(
                "Permissions Violation for Publish to \"a.{n}\""
            )));
            reports.record(&violation(&format!(
                "Permissions Violation for Subscription to \"_INBOX.{n}\""
            )));
        }
        {
            let denied = reports.denied();
            assert!(denied.publish.len().max(denied.subscribe.len()) <= SUBJECTS_MAX);
        }
        assert!(reports.denied_inbox("_INBOX.").is_some());
        reports.record(&Event::Connected);
        assert!(reports.denied_inbox("_INBOX.").is_none());
    }
}
