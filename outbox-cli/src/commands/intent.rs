//! Actor and reason of a change, for its operation.

use clap::Args;
use outbox::core::Intent;

use super::confirm::ConfirmArguments;

const VARIABLE: &str = "OUTBOX_ACTOR";

pub(super) const NO_REASON: &str = "no reason was given";

/// Actor and reason.
#[derive(Debug, Clone, Default, Args)]
pub struct IntentArguments {
    /// Actor, for the audit. Default: the variable `OUTBOX_ACTOR`, else user and machine.
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// Reason, for the audit: a ticket, an incident.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// Change options.
#[derive(Debug, Clone, Default, Args)]
pub struct MakeArguments {
    /// Who and why.
    #[command(flatten)]
    pub intent: IntentArguments,
    /// Make the change. Without this option the command prints a preview.
    #[arg(long)]
    pub yes: bool,
    /// Confirmation options.
    #[command(flatten)]
    pub confirm: ConfirmArguments,
}

impl IntentArguments {
    pub(super) fn intent(&self) -> Intent {
        let given = self.actor.clone().or_else(|| variable(VARIABLE));
        let intent = Intent::of(
            given
                .filter(|actor| !actor.trim().is_empty())
                .unwrap_or_else(user_and_machine),
        );
        match &self.reason {
            Some(reason) => intent.because(reason),
            None => intent,
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The default actor, from environment and kernel. The caller can change both, so the actor proves
/// no identity.
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
    fn named_actor_takes_precedence() {
        let of = |actor: &str| {
            let reason = Some("INC-1".to_owned());
            let actor = Some(actor.to_owned());
            IntentArguments { actor, reason }.intent()
        };
        assert_eq!(of("ann"), Intent::of("ann").because("INC-1"));
        assert!(of("  ").actor.contains('@'));
    }
}
