//! Who makes a change, and why: for the operation that is written down with it.

use clap::Args;
use outbox::core::Intent;

use super::confirm::ConfirmArguments;

/// The variable that says who makes changes, where `--actor` does not.
const VARIABLE: &str = "OUTBOX_ACTOR";

/// Who makes the change.
#[derive(Debug, Clone, Default, Args)]
#[non_exhaustive]
pub struct ActorArguments {
    /// Who makes the change, for the audit. Default: the variable `OUTBOX_ACTOR`, else the user and the machine.
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
}

/// Who makes the change, and why.
#[derive(Debug, Clone, Default, Args)]
#[non_exhaustive]
pub struct IntentArguments {
    /// Who.
    #[command(flatten)]
    pub actor: ActorArguments,
    /// Why, for the audit: a ticket, an incident.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// How a change is made: by whom and why, and whether at all.
#[derive(Debug, Clone, Default, Args)]
#[non_exhaustive]
pub struct MakeArguments {
    /// Who and why.
    #[command(flatten)]
    pub intent: IntentArguments,
    /// Make the change. Without this option the command prints a preview.
    #[arg(long)]
    pub yes: bool,
    /// How it is confirmed in production.
    #[command(flatten)]
    pub confirm: ConfirmArguments,
}

impl ActorArguments {
    pub(super) fn intent(&self) -> Intent {
        let given = self.actor.clone().or_else(|| variable(VARIABLE));
        Intent::of(
            given
                .filter(|actor| !actor.trim().is_empty())
                .unwrap_or_else(user_and_machine),
        )
    }
}

impl IntentArguments {
    pub(super) fn intent(&self) -> Intent {
        let intent = self.actor.intent();
        match &self.reason {
            Some(reason) => intent.because(reason),
            None => intent,
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// As the environment and the kernel say it. Whoever may run this program may change both: it is a note, and no proof.
fn user_and_machine() -> String {
    let user = ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(variable);
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let machine = machine
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty());
    let machine = machine.or_else(|| ["HOSTNAME", "COMPUTERNAME"].into_iter().find_map(variable));
    let unknown = || "unknown".to_owned();
    format!(
        "{}@{}",
        user.unwrap_or_else(unknown),
        machine.unwrap_or_else(unknown)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_named_counts_before_who_is_found() {
        let named = ActorArguments {
            actor: Some("ann".to_owned()),
        };
        assert_eq!(named.intent().actor, "ann");
        let found = ActorArguments {
            actor: Some("  ".to_owned()),
        };
        assert!(found.intent().actor.contains('@'));
        let why = IntentArguments {
            actor: named,
            reason: Some("INC-1".to_owned()),
        };
        assert_eq!(why.intent().reason.as_deref(), Some("INC-1"));
    }
}
