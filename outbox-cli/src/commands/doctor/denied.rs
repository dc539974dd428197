//! Collects permissions that nats-server denies to this login.
//!
//! The server never answers a denied request: it reports the denial on the connection, and the
//! request times out. So denials replace the timeouts in the findings.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use outbox::nats::Denial;
use outbox::nats::async_nats::Event;
use outbox_admin::Command;
use outbox_admin::doctor::{Check, Diagnosis, Examination};

use crate::config::Outbox;

/// Prefix of reply subjects.
const INBOX: &str = "_INBOX.";

const STREAM_INFO: &str = "$JS.API.STREAM.INFO.";

#[derive(Debug, Clone, Default)]
pub(super) struct Denied(Arc<Mutex<BTreeSet<Denial>>>);

impl Denied {
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

    /// Adds one finding for all denials. It replaces findings of unanswered requests.
    pub(super) fn tell(&self, outbox: &Outbox, as_relay: bool, found: &mut Examination) {
        let denials = self.set(std::mem::take);
        if denials.is_empty() {
            return;
        }
        // If stream information was denied, findings about the stream are unreliable.
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
