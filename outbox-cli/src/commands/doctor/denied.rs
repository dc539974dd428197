//! What nats-server denies this login while the doctor looks, with the command that prints its permissions.
//!
//! A denied request has no answer: the server says so on the connection, and whoever waits only learns that time has run out. So what the connection tells is
//! kept, and takes the place of what was found instead.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use outbox::nats::async_nats::{Event, ServerError};
use outbox_admin::Command;
use outbox_admin::doctor::{Check, Diagnosis, Examination};

use crate::config::Outbox;

/// Where answers arrive. Each connection has a subject of its own below.
const INBOX: &str = "_INBOX.";

/// Where the server is asked about a stream.
const STREAM_INFO: &str = "$JS.API.STREAM.INFO.";

/// A request that the server denies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Denial {
    Publish(String),
    Subscribe(String),
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publish(subject) => write!(f, "publish on `{subject}`"),
            Self::Subscribe(subject) => write!(f, "subscribe to `{subject}`"),
        }
    }
}

/// What was denied, each once.
#[derive(Debug, Clone, Default)]
pub(super) struct Denied(Arc<Mutex<BTreeSet<Denial>>>);

impl Denied {
    /// Keeps a denial, and nothing else.
    pub(super) fn hear(&self, event: &Event) {
        if let Event::ServerError(ServerError::Other(reason)) = event
            && let Some(denial) = denial(reason)
        {
            self.set(|all| all.insert(denial));
        }
    }

    /// Makes one finding of what was denied. It replaces that nats has not answered, which is the same trouble.
    pub(super) fn tell(&self, outbox: &Outbox, as_relay: bool, found: &mut Examination) {
        let denials = self.set(std::mem::take);
        if denials.is_empty() {
            return;
        }
        // The stream itself can be wrong only if it could be looked at.
        let is_of_stream =
            |denial: &Denial| matches!(denial, Denial::Publish(subject) if subject.starts_with(STREAM_INFO));
        let was_seen = !denials.iter().any(is_of_stream);
        found
            .findings
            .retain(|finding| finding.check != Check::Nats && (was_seen || finding.check != Check::Stream));
        let seen: Vec<String> = denials.iter().map(Denial::to_string).collect();
        let seen = seen.join(", ");
        found.findings.push(Diagnosis::failed(
            Check::Nats,
            format!("nats denies this login to {seen}"),
            "the permissions of whoever looks, beside those of a relay",
            command(outbox, as_relay),
        ));
    }

    fn set<T>(&self, act: impl FnOnce(&mut BTreeSet<Denial>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reads `Permissions Violation for Publish to "events.order.1.placed"`.
fn denial(reason: &str) -> Option<Denial> {
    let (what, rest) = reason.split_once('"')?;
    let (subject, _) = rest.split_once('"')?;
    let what = what.to_ascii_lowercase();
    let subject = match subject.starts_with(INBOX) {
        true => "_INBOX.>".to_owned(),
        false => subject.to_owned(),
    };
    match what.trim_end() {
        "permissions violation for publish to" => Some(Denial::Publish(subject)),
        "permissions violation for subscription to" => Some(Denial::Subscribe(subject)),
        _ => None,
    }
}

fn command(outbox: &Outbox, as_relay: bool) -> Command {
    let stream = &outbox.section.stream;
    let command = match as_relay {
        true => "outbox print nats-permissions --role relay --role viewer",
        false => "outbox print nats-permissions --role viewer",
    };
    Command::from(command)
        .option("--stream", &stream.name)
        .option("--prefix", &stream.prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_told_by_its_subject_and_nothing_else_is_one() {
        for (reason, told) in [
            (
                r#"Permissions Violation for Publish to "$JS.API.STREAM.INFO.SHOP""#,
                Some("publish on `$JS.API.STREAM.INFO.SHOP`"),
            ),
            (
                r#"permissions violation for subscription to "_INBOX.a.*""#,
                Some("subscribe to `_INBOX.>`"),
            ),
            (
                r#"Permissions Violation for Subscription to "a.b" using queue "q""#,
                Some("subscribe to `a.b`"),
            ),
            ("maximum connections exceeded", None),
            (r#"no such thing as "a""#, None),
        ] {
            let said = denial(reason).map(|denial| denial.to_string());
            assert_eq!(said.as_deref(), told, "{reason}");
        }
    }
}
