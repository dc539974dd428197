//! Names the service that a durable consumer belongs to, in its metadata.
//!
//! Two services with the same consumer name share its messages: each message reaches one of the
//! services. Copied code is the usual cause. A renamed service looks the same, so this module warns
//! and refuses nothing.

use std::collections::HashMap;

use async_nats::jetstream::consumer::pull;

use crate::consumer::Durable;
use crate::stream::Provisioning;

/// The key. Servers before 2.10 keep no metadata.
const SERVICE: &str = "outbox-service";

/// The name of the running program without its folder and extension; empty if it is not known.
pub(crate) fn of_program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// The service in the metadata of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    This,
    /// The metadata name no service.
    Unnamed,
    Other(String),
}

impl Owner {
    pub(crate) fn of(seen: &pull::Config, service: &str) -> Self {
        match seen.metadata.get(SERVICE) {
            Some(named) if named == service => Self::This,
            Some(named) => Self::Other(named.clone()),
            None => Self::Unnamed,
        }
    }
}

impl Durable {
    /// Warns of a consumer that another service has used last. Returns the change of the metadata,
    /// if this program may write.
    pub(crate) fn claims(&self, seen: &pull::Config) -> Option<String> {
        let owner = Owner::of(seen, &self.service);
        if self.service.is_empty() || !self.many_filters || owner == Owner::This {
            return None;
        }
        if let Owner::Other(other) = &owner {
            tracing::warn!(
                consumer = self.spec.name,
                other,
                service = self.service,
                "another service has used this consumer: services that share a consumer name share its messages, and each message reaches one of them; give each \
                 service a consumer name of its own"
            );
        }
        let may_write = self.provisioning == Provisioning::Create;
        may_write.then(|| format!("metadata name service {}", self.service))
    }
}

/// The metadata with the service.
pub(crate) fn named(mut metadata: HashMap<String, String>, service: &str) -> HashMap<String, String> {
    metadata.insert(SERVICE.to_owned(), service.to_owned());
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_of_another_service_is_told_by_its_metadata() {
        let mut config = pull::Config::default();
        assert_eq!(Owner::of(&config, "shop"), Owner::Unnamed);
        config.metadata = named(HashMap::from([("by".to_owned(), "ann".to_owned())]), "shop");
        assert_eq!(Owner::of(&config, "shop"), Owner::This);
        assert_eq!(Owner::of(&config, "mail"), Owner::Other("shop".to_owned()));
        assert_eq!(config.metadata["by"], "ann");
    }
}
