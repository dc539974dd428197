//! Permissions on NATS, per role: subjects.

/// A part of a deployment that logs in to NATS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum NatsRole {
    /// A relay. In strong mode it needs [`Self::Strong`] and [`Self::Reader`] as well.
    Relay,
    /// What strong mode needs beside the rights of a relay and of a reader.
    Strong,
    /// Reads which messages are on the stream: reconciling, strong mode, and an operator's search for one message.
    Reader,
    /// Makes and changes the stream.
    Provision,
    /// A consumer that was made for it.
    Consumer,
    /// What an inbox that makes its consumer needs beside the rights of [`Self::Consumer`].
    MakeConsumer,
    /// What strategy `sequence` needs beside the rights of a consumer, and an inbox that shows how old its oldest message is.
    Sequence,
    /// Somebody who only looks.
    Viewer,
    /// A writer's process that sends hints, or a relay's that listens for them.
    Hints,
}

/// The names that stand in subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream<'a> {
    /// The stream.
    pub name: &'a str,
    /// The first tokens of its subjects.
    pub prefix: &'a str,
    /// More subjects that it captures.
    pub subjects: &'a [String],
    /// The consumers, for the roles of consumers.
    pub consumers: &'a [String],
    /// The user. Its answers arrive on subjects of its own.
    pub user: &'a str,
}

/// What a user may publish on and subscribe to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Permissions {
    /// Subjects to publish on.
    pub publish: Vec<String>,
    /// Subjects to subscribe to.
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

    /// Whether its subjects hold the name of a consumer.
    #[must_use]
    pub fn needs_consumer(self) -> bool {
        self.publish()
            .iter()
            .any(|subject| subject.contains("{consumer}"))
    }

    /// Subjects to publish on, with placeholders for names.
    fn publish(self) -> &'static [&'static str] {
        match self {
            Self::Relay => &[
                "{prefix}.>",
                "$JS.API.STREAM.INFO.{stream}",
                "$JS.API.STREAM.MSG.GET.{stream}",
                "{subjects}",
            ],
            Self::Strong | Self::Sequence => &["$JS.API.STREAM.MSG.GET.{stream}"],
            // Without a name in the subject, the server creates no durable consumer and changes none.
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

    /// Subjects to subscribe to. Answers arrive under the inbox prefix of the user (`outbox_nats::inbox_prefix`).
    fn subscribe(self) -> &'static [&'static str] {
        match self {
            Self::Strong | Self::MakeConsumer | Self::Sequence => &[],
            Self::Hints => &["outbox.hint"],
            // `outbox relay run` listens to hints.
            Self::Relay => &["_INBOX.{user}.>", "outbox.hint"],
            _ => &["_INBOX.{user}.>"],
        }
    }
}

/// The permissions of a user who has these roles.
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
