//! What nats-server denies this login while the doctor looks, with the command that prints its permissions.
//!
//! A denied request has no answer: the server says so on the connection, and whoever waits only learns that time has run out. So what the connection tells is
//! kept, and takes the place of what was found instead.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use outbox::nats::Denial;
use outbox::nats::async_nats::Event;
use outbox_admin::Command;
use outbox_admin::doctor::{Check, Diagnosis, Examination};

use crate::config::Outbox;

/// Where answers arrive. Each connection has a subject of its own below.
const INBOX: &str = "_INBOX.";

/// Where the server is asked about a stream.
const STREAM_INFO: &str = "$JS.API.STREAM.INFO.";

/// What was denied, each once.
#[derive(Debug, Clone, Default)]
pub(super) struct Denied(Arc<Mutex<BTreeSet<Denial>>>);

impl Denied {
    /// Keeps a denial, and nothing else.
    pub(super) fn hear(&self, event: &Event) {
        let denial = match Denial::of(event) {
            Some(Denial::Subscribe(subject)) if subject.starts_with(INBOX) => {
                Denial::Subscribe(format!("{INBOX}>"))
            }
            Some(denial) => denial,
            None => return,
        };
        self.set(|all| all.insert(denial));
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
