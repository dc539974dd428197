//! Records the service that owns a durable consumer, in the consumer's metadata.
//!
//! Two services with the same consumer name share its messages. The usual cause is copied code, but
//! a renamed service looks the same, so this module only warns.

use std::collections::HashMap;

use async_nats::jetstream::consumer::pull;

/// Metadata key of the service name. Servers before 2.10 keep no metadata.
const SERVICE: &str = "outbox-service";

pub(crate) fn of_program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    This,
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

/// Warns if the consumer's metadata names another service.
pub(crate) fn is_new(consumer: &str, seen: &pull::Config, service: &str) -> bool {
    let owner = Owner::of(seen, service);
    if let Owner::Other(other) = &owner {
        tracing::warn!(
            consumer,
            other,
            service,
            "another service has used this consumer: services that share a consumer name share its messages; give each service its own consumer name"
        );
    }
    owner != Owner::This
}

pub(crate) fn named(mut metadata: HashMap<String, String>, service: &str) -> HashMap<String, String> {
    metadata.insert(SERVICE.to_owned(), service.to_owned());
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_shows_the_service_of_a_consumer() {
        let mut config = pull::Config::default();
        assert_eq!(Owner::of(&config, "shop"), Owner::Unnamed);
        config.metadata = named(HashMap::from([("by".to_owned(), "ann".to_owned())]), "shop");
        assert_eq!(Owner::of(&config, "shop"), Owner::This);
        assert_eq!(Owner::of(&config, "mail"), Owner::Other("shop".to_owned()));
        assert_eq!(config.metadata["by"], "ann");
    }
}
