//! Logs the connection events of a client.
//!
//! Invariants: an outage, rejected credentials and the end of an outage are logged once each, with
//! the server names; events in between are at level debug. No secret is logged.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use async_nats::Event;
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct Notices {
    servers: String,
    outage: Mutex<Outage>,
}

#[derive(Debug, Default)]
struct Outage {
    down: BTreeSet<&'static str>,
    began: Option<Instant>,
    refused: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Notice {
    Connected,
    Again(std::time::Duration),
    Lost(String),
    Refused(String),
    Repeated(String),
    Other,
}

impl Notices {
    /// `servers`: the server names without credentials.
    pub(crate) fn new(servers: String) -> Self {
        Self {
            servers,
            outage: Mutex::default(),
        }
    }

    pub(crate) fn tell(&self, event: &Event, connection: &'static str, is_new_denial: Option<bool>) {
        let servers = &*self.servers;
        let notice = {
            let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
            outage.note(event, connection)
        };
        match notice {
            Notice::Connected => tracing::info!(connection, servers, "connected to nats"),
            Notice::Again(after) => tracing::info!(servers, ?after, "reconnected to nats"),
            Notice::Lost(reason) => {
                tracing::warn!(
                    servers,
                    reason,
                    "no connection to nats; retrying until a server answers"
                );
            }
            Notice::Refused(reason) => tracing::error!(
                servers,
                reason,
                "nats rejects the credentials; correct user, password, token or credentials file; retrying"
            ),
            Notice::Repeated(reason) => tracing::debug!(connection, servers, reason, "no connection to nats"),
            Notice::Other => self.tell_other(event, connection, is_new_denial),
        }
    }

    fn tell_other(&self, event: &Event, connection: &str, is_new_denial: Option<bool>) {
        let servers = &*self.servers;
        match (event, is_new_denial) {
            (_, Some(true)) => tracing::error!(
                connection,
                reason = %event,
                "nats denies a permission; messages on this subject wait until the server's permissions allow it"
            ),
            (_, Some(false)) => tracing::debug!(connection, reason = %event, "nats denies a permission"),
            (Event::SlowConsumer(_), _) => tracing::warn!(connection, servers, "nats connection: {event}"),
            (Event::ServerError(_), _) => tracing::error!(connection, servers, "nats connection: {event}"),
            _ => tracing::info!(connection, servers, "nats connection: {event}"),
        }
    }
}

impl Outage {
    fn note(&mut self, event: &Event, connection: &'static str) -> Notice {
        match event {
            Event::Connected => {
                self.down.remove(connection);
                match self.began {
                    Some(began) if self.down.is_empty() => {
                        *self = Self::default();
                        Notice::Again(began.elapsed())
                    }
                    Some(_) => Notice::Repeated("another connection is still down".to_owned()),
                    None => Notice::Connected,
                }
            }
            Event::Disconnected | Event::ClientError(_) => {
                let reason = event.to_string();
                self.down.insert(connection);
                let is_new = self.began.is_none();
                self.began.get_or_insert_with(Instant::now);
                let lower = reason.to_ascii_lowercase();
                let is_refused = lower.contains("authorization") || lower.contains("authentication");
                if is_refused && !self.refused {
                    self.refused = true;
                    Notice::Refused(reason)
                } else if is_new {
                    Notice::Lost(reason)
                } else {
                    Notice::Repeated(reason)
                }
            }
            Event::Closed => {
                self.down.remove(connection);
                if self.down.is_empty() {
                    *self = Self::default();
                }
                Notice::Other
            }
            _ => Notice::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_nats::ClientError;

    use super::*;

    fn failed(reason: &str) -> Event {
        Event::ClientError(ClientError::Other(reason.to_owned()))
    }

    #[tokio::test(start_paused = true)]
    async fn outage_is_logged_once_for_all_connections() {
        let mut outage = Outage::default();
        assert_eq!(outage.note(&Event::Connected, "shared"), Notice::Connected);
        assert_eq!(outage.note(&Event::Connected, "publisher"), Notice::Connected);
        assert!(matches!(
            outage.note(&Event::Disconnected, "shared"),
            Notice::Lost(_)
        ));
        assert!(matches!(
            outage.note(&Event::Disconnected, "publisher"),
            Notice::Repeated(_)
        ));
        for _ in 0..1000 {
            assert!(matches!(
                outage.note(&failed("IO error"), "shared"),
                Notice::Repeated(_)
            ));
        }
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(matches!(
            outage.note(&Event::Connected, "shared"),
            Notice::Repeated(_)
        ));
        assert_eq!(
            outage.note(&Event::Connected, "publisher"),
            Notice::Again(Duration::from_secs(9))
        );
        assert!(matches!(
            outage.note(&failed("IO error"), "shared"),
            Notice::Lost(_)
        ));
    }

    #[tokio::test]
    async fn rejected_credentials_are_logged_once() {
        let mut outage = Outage::default();
        assert!(matches!(
            outage.note(&Event::Disconnected, "shared"),
            Notice::Lost(_)
        ));
        let refused = failed("nats: authorization violation");
        assert!(matches!(outage.note(&refused, "shared"), Notice::Refused(_)));
        assert!(matches!(outage.note(&refused, "publisher"), Notice::Repeated(_)));
    }
}
