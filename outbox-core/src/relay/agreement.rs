//! Check that live relays of one outbox have the same destination and source.
//!
//! Invariant: a relay without partitions acquires none while a live relay disagrees with it.

use std::error::Error;
use std::fmt;

use crate::publisher::Destination;
use crate::store::{Announcement, LiveRelay, OwnerId};

/// Two relays of one outbox with different destinations or sources.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Disagreement {
    /// The checking relay.
    pub owner: OwnerId,
    /// The checking relay's name, see [`LiveRelay::name`].
    pub name: Option<String>,
    /// Checking relay's destination.
    pub destination: Destination,
    /// The disagreeing live relay.
    pub other_owner: OwnerId,
    /// Live relay's name.
    pub other_name: Option<String>,
    /// Live relay's destination.
    pub other_destination: Destination,
}

impl Disagreement {
    pub(super) fn is_of_instances(&self) -> bool {
        let instance = self.destination.instance.clone();
        let other = Destination {
            instance,
            ..self.other_destination.clone()
        };
        other == self.destination
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |name: &Option<String>, owner| match name {
            Some(name) => format!("`{name}` ({owner})"),
            None => format!("{owner}"),
        };
        write!(
            f,
            "relay {} would publish to {}, but the live relay {} of the same outbox publishes to {}; give both relays the same settings and the right \
             database, or stop the other relay, or set `allow_other_destination` for a deliberate move",
            named(&self.name, self.owner),
            self.destination,
            named(&self.other_name, self.other_owner),
            self.other_destination
        )
    }
}

impl Error for Disagreement {}

pub(super) fn disagreement(
    owner: OwnerId,
    announcement: &Announcement,
    relays: Vec<LiveRelay>,
) -> Option<Disagreement> {
    let own = relays.iter().find(|relay| relay.owner == owner);
    let name = own.and_then(|relay| relay.name.clone());
    // A store may shorten and escape destinations, so this relay's destination is compared as
    // stored.
    let registration = own.map_or(&*announcement.registration, |own| &own.registration);
    let destination = registration.destination.clone()?;
    let other = relays.into_iter().find(|relay| {
        let registered = &relay.registration.destination;
        relay.owner != owner
            && registered
                .as_ref()
                .is_some_and(|other| !other.agrees_with(&destination))
    })?;
    Some(Disagreement {
        owner,
        name,
        destination,
        other_owner: other.owner,
        other_name: other.name,
        other_destination: other.registration.destination?,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::store::{Registration, RelayHealth};

    fn relay(source: &str) -> LiveRelay {
        LiveRelay {
            owner: OwnerId::fresh(),
            name: None,
            health: RelayHealth::Healthy,
            expires_in: Duration::from_secs(10),
            registration: registration(source),
            trouble: None,
        }
    }

    fn registration(source: &str) -> Registration {
        Registration {
            destination: Some(Destination {
                stream: "ORDERS".to_owned(),
                instance: None,
                subjects: "events.{aggregate}.{id}.{event}".to_owned(),
                source: source.to_owned(),
            }),
            ..Registration::default()
        }
    }

    #[test]
    fn stored_destinations_are_compared() {
        let announcement = Announcement {
            registration: Arc::new(registration("sh\u{f6}p")),
            ..Announcement::default()
        };
        let (own, equal, different) = (relay("sh\\xf6p"), relay("sh\\xf6p"), relay("billing"));
        let owner = own.owner;
        assert_eq!(disagreement(owner, &announcement, vec![own.clone(), equal]), None);
        let found = disagreement(owner, &announcement, vec![own, different.clone()]).unwrap();
        assert_eq!(found.other_owner, different.owner);
    }
}
