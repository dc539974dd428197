//! `outbox print nats-permissions`: a user for the configuration of nats-server.
//!
//! Invariant: no password is printed; the server reads it from an environment variable.

use std::fmt::Write as _;

use clap::{Args, ValueEnum};
use outbox::nats::encode_token;
use outbox_admin::rights::{NatsRole, Stream, permissions};

use super::grants::parse_name;
use crate::failure::CommandError;

/// Arguments of `outbox print nats-permissions`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct PermissionsCommand {
    /// Role of the login. May be repeated.
    #[arg(long, value_enum, required = true)]
    pub role: Vec<NatsRoleArgument>,
    /// The login. Default: the name of the first role.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub user: Option<String>,
    /// The stream.
    #[arg(long, value_name = "NAME", default_value = "EVENTS", value_parser = parse_name)]
    pub stream: String,
    /// The first tokens of its subjects.
    #[arg(long, value_name = "TOKENS", default_value = "events", value_parser = parse_name)]
    pub prefix: String,
    /// A fixed subject of an event type. May be repeated.
    #[arg(long, value_name = "SUBJECT", value_parser = parse_name)]
    pub subject: Vec<String>,
    /// A consumer, for roles of consumers. May be repeated.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub consumer: Vec<String>,
}

/// A role on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct NatsRoleArgument(pub NatsRole);

impl ValueEnum for NatsRoleArgument {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [NatsRoleArgument; NatsRole::ALL.len()] = {
            let mut all = [NatsRoleArgument(NatsRole::Relay); NatsRole::ALL.len()];
            let mut index = 0;
            while index < NatsRole::ALL.len() {
                all[index] = NatsRoleArgument(NatsRole::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.as_str()))
    }
}

impl PermissionsCommand {
    pub(super) fn text(&self) -> Result<String, CommandError> {
        let roles: Vec<NatsRole> = self.role.iter().map(|role| role.0).collect();
        let of_consumers = roles.iter().find(|role| role.needs_consumer());
        if let Some(role) = of_consumers.filter(|_| self.consumer.is_empty()) {
            return Err(CommandError::configuration(format!(
                "role `{}` needs the name of its consumer: `--consumer NAME`",
                role.as_str()
            )));
        }
        let words: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
        let user = self.user.clone().unwrap_or_else(|| words[0].to_owned());
        let stream = Stream {
            name: &self.stream,
            prefix: &self.prefix,
            subjects: &self.subject,
            consumers: &self.consumer,
            user: &encode_token(&user),
        };
        let variable: String = user
            .chars()
            .map(|character| {
                if character.is_ascii_alphanumeric() {
                    character.to_ascii_uppercase()
                } else {
                    '_'
                }
            })
            .collect();
        let permissions = permissions(&roles, &stream);
        let mut text = format!(
            "# A user of nats-server as {}: an entry of `users` in its `authorization`, or in an account.\n# The server takes the password from its environment.\n",
            words.join(", ")
        );
        let _ = writeln!(
            text,
            "{{\n  user: \"{user}\"\n  password: $OUTBOX_{variable}_PASSWORD\n  permissions: {{"
        );
        for (verb, subjects) in [
            ("publish", &permissions.publish),
            ("subscribe", &permissions.subscribe),
        ] {
            // An empty list would allow everything.
            if subjects.is_empty() {
                let _ = writeln!(text, "    {verb}: {{ deny: [\">\"] }}");
                continue;
            }
            let _ = writeln!(text, "    {verb}: {{ allow: [");
            for subject in subjects {
                let _ = writeln!(text, "      \"{subject}\"");
            }
            let _ = writeln!(text, "    ] }}");
        }
        text.push_str("  }\n}\n");
        Ok(text)
    }
}
