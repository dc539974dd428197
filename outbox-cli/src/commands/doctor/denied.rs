//! Collects permissions that nats-server denies to this login.
//!
//! nats-server never answers a denied request: it reports the denial on the connection, and the
//! request times out. So findings show denials instead of timeouts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::admin::Next;
use crate::admin::doctor::{Check, Diagnosis, Examination};
use outbox::nats::Denial;
use outbox::nats::async_nats::Event;

use crate::config::Outbox;

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

    pub(super) fn tell(&self, outbox: &Outbox, as_relay: bool, found: &mut Examination) {
        let denials = self.set(std::mem::take);
        if denials.is_empty() {
            return;
        }
        let is_of_stream =
            |denial: &Denial| matches!(denial, Denial::Publish(subject) if subject.starts_with(STREAM_INFO));
        let was_seen = !denials.iter().any(is_of_stream);
        found
            .findings
            .retain(|finding| finding.check != Check::Nats && (was_seen || finding.check != Check::Stream));
        let stream = &outbox.section.stream;
        let roles = match as_relay {
            true => "`relay` and `viewer`",
            false => "`viewer`",
        };
        let seen: Vec<String> = denials.iter().map(Denial::to_string).collect();
        let seen = seen.join(", ");
        found.findings.push(Diagnosis::failed(
            Check::Nats,
            format!("nats denies this login to {seen}"),
            "the permissions named below",
            Next::advice(format!(
                "grant the permissions of {roles} (docs/reference/permissions.md) for stream `{}` and prefix `{}`",
                stream.name, stream.prefix
            )),
        ));
    }

    fn set<T>(&self, act: impl FnOnce(&mut BTreeSet<Denial>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use outbox::nats::async_nats::ServerError;

    use super::*;
    use crate::config::{OutboxSection, Secret};

    #[test]
    fn denials_replace_timeout_findings() {
        let outbox = Outbox {
            section: OutboxSection::default(),
            database_url: Secret::default(),
            log_url: Secret::default(),
            nats_url: Secret::default(),
            nats_credentials: None,
            source: None,
        };
        let denied = Denied::default();
        let reason = "permissions violation for publish to \"$js.api.stream.info.events\"";
        denied.hear(&Event::ServerError(ServerError::Other(reason.to_owned())));
        let mut found = Examination::default();
        let silent = Diagnosis::failed(Check::Nats, "no answer", "an answer", "outbox doctor");
        found.findings.push(silent);
        denied.tell(&outbox, false, &mut found);
        assert_eq!(found.findings.len(), 1);
        let Diagnosis { seen, next, .. } = &found.findings[0];
        assert!(seen.contains("denies this login to publish on"), "{seen}");
        assert!(
            next.advice
                .as_ref()
                .is_some_and(|advice| advice.contains("`viewer`"))
        );
        denied.tell(&outbox, false, &mut found);
        assert_eq!(found.findings.len(), 1);
    }
}
