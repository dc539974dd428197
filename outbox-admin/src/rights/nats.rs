//! NATS permissions per role, as subjects.

/// A login of NATS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum NatsRole {
    /// A relay. In strong mode, add [`Self::Strong`] and [`Self::Reader`].
    Relay,
    /// A relay's additions in strong mode.
    Strong,
    /// Reads messages, for reconciling and lookups.
    Reader,
    /// Creates and updates the stream.
    Provision,
    /// A consumer on an existing durable consumer.
    Consumer,
    /// Additions to create a durable consumer.
    MakeConsumer,
    /// Additions for strategy `sequence`, and for reporting the oldest message's age.
    Sequence,
    /// A person with read-only access.
    Viewer,
    /// Sends or receives hints.
    Hints,
}

/// Names that occur in subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream<'a> {
    /// Stream name.
    pub name: &'a str,
    /// First tokens of the subjects.
    pub prefix: &'a str,
    /// Additional captured subjects.
    pub subjects: &'a [String],
    /// Consumer names, for consumer roles.
    pub consumers: &'a [String],
    /// User name, in reply subjects.
    pub user: &'a str,
}

/// Permissions of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Permissions {
    /// Subjects allowed for publishing.
    pub publish: Vec<String>,
    /// Subjects allowed for subscriptions.
    pub subscribe: Vec<String>,
}

impl NatsRole {
    /// All roles.
    pub const ALL: [Self; 9] = [
        Self::Relay,
        Self::Strong,
        Self::Reader,
        Self::Provision,
        Self::Consumer,
        Self::MakeConsumer,
        Self::Sequence,
        Self::Viewer,
        Self::Hints,
    ];

    /// The role as a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Strong => "strong",
            Self::Reader => "reader",
            Self::Provision => "provision",
            Self::Consumer => "consumer",
            Self::MakeConsumer => "make-consumer",
            Self::Sequence => "sequence",
            Self::Viewer => "viewer",
            Self::Hints => "hints",
        }
    }

    /// Whether subjects contain a consumer name.
    #[must_use]
    pub fn needs_consumer(self) -> bool {
        self.publish()
            .iter()
            .any(|subject| subject.contains("{consumer}"))
    }

    fn publish(self) -> &'static [&'static str] {
        match self {
            Self::Relay => &[
                "{prefix}.>",
                "$JS.API.STREAM.INFO.{stream}",
                "$JS.API.STREAM.MSG.GET.{stream}",
                "{subjects}",
            ],
            Self::Strong | Self::Sequence => &["$JS.API.STREAM.MSG.GET.{stream}"],
            // Without a name, no durable consumer can be created or changed.
            Self::Reader => &[
                "$JS.API.STREAM.INFO.{stream}",
                "$JS.API.STREAM.MSG.GET.{stream}",
                "$JS.API.CONSUMER.CREATE.{stream}",
                "$JS.API.CONSUMER.INFO.{stream}.*",
                "$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
            ],
            Self::Provision => &[
                "$JS.API.STREAM.INFO.{stream}",
                "$JS.API.STREAM.CREATE.{stream}",
                "$JS.API.STREAM.UPDATE.{stream}",
                "$JS.API.STREAM.NAMES",
            ],
            Self::Consumer => &[
                "$JS.API.STREAM.INFO.{stream}",
                "$JS.API.STREAM.MSG.GET.{stream}",
                "$JS.API.CONSUMER.INFO.{stream}.{consumer}",
                "$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
                "$JS.ACK.{stream}.{consumer}.>",
            ],
            Self::MakeConsumer => &[
                "$JS.API.CONSUMER.CREATE.{stream}.{consumer}",
                "$JS.API.CONSUMER.CREATE.{stream}.{consumer}.>",
                "$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{consumer}",
            ],
            Self::Viewer => &[
                "$JS.API.STREAM.INFO.{stream}",
                "$JS.API.STREAM.MSG.GET.{stream}",
                "$JS.API.CONSUMER.LIST.{stream}",
                "$JS.API.CONSUMER.INFO.{stream}.*",
            ],
            Self::Hints => &["outbox.hint"],
        }
    }

    /// Replies arrive under the user's inbox prefix (`outbox_nats::inbox_prefix`).
    fn subscribe(self) -> &'static [&'static str] {
        match self {
            Self::Strong | Self::MakeConsumer | Self::Sequence => &[],
            Self::Hints => &["outbox.hint"],
            // `outbox relay run` receives hints.
            Self::Relay => &["_INBOX.{user}.>", "outbox.hint"],
            _ => &["_INBOX.{user}.>"],
        }
    }
}

/// Combined permissions of several roles.
#[must_use]
pub fn permissions(roles: &[NatsRole], stream: &Stream<'_>) -> Permissions {
    let filled = |template: &str| {
        template
            .replace("{prefix}", stream.prefix)
            .replace("{stream}", stream.name)
            .replace("{user}", stream.user)
    };
    let mut permissions = Permissions::default();
    let add = |subjects: &mut Vec<String>, subject: String| {
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
    };
    for role in roles {
        for template in role.publish() {
            if *template == "{subjects}" {
                for subject in stream.subjects {
                    add(&mut permissions.publish, subject.clone());
                }
            } else if template.contains("{consumer}") {
                for consumer in stream.consumers {
                    add(
                        &mut permissions.publish,
                        filled(template).replace("{consumer}", consumer),
                    );
                }
            } else {
                add(&mut permissions.publish, filled(template));
            }
        }
        for subject in role.subscribe() {
            add(&mut permissions.subscribe, filled(subject));
        }
    }
    permissions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_where_the_table_has_placeholders() {
        let stream = Stream {
            name: "SHOP",
            prefix: "shop",
            subjects: &["legacy.orders".to_owned()],
            consumers: &["billing".to_owned(), "shipping".to_owned()],
            user: "relay",
        };
        let of_relay = permissions(&[NatsRole::Relay, NatsRole::Reader], &stream);
        assert_eq!(
            of_relay.publish[..4],
            [
                "shop.>",
                "$JS.API.STREAM.INFO.SHOP",
                "$JS.API.STREAM.MSG.GET.SHOP",
                "legacy.orders"
            ]
        );
        assert_eq!(of_relay.subscribe, ["_INBOX.relay.>", "outbox.hint"]);
        let of_consumers = permissions(&[NatsRole::Consumer], &stream);
        for consumer in stream.consumers {
            let subject = format!("$JS.ACK.SHOP.{consumer}.>");
            assert!(of_consumers.publish.contains(&subject), "{subject}");
        }
        for role in NatsRole::ALL {
            let permissions = permissions(&[role], &stream);
            let mut all = permissions.publish.iter().chain(&permissions.subscribe);
            assert!(all.all(|subject| !subject.contains(['{', '}'])), "{role:?}");
        }
    }
}
