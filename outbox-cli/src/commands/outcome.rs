//! Plans and results of changes.

use std::fmt::Write as _;

use crate::admin::{Command, Plan};
use outbox::core::OperationId;
use serde::Serialize;

use super::recheck;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Format, Print, plain, say, say_next};

pub(super) const PREVIEWED: &str = "nothing was changed; re-run with `--yes`";

pub(super) fn previewed(format: Format, plan: &Plan) -> Result<Outcome, CommandError> {
    output::one(format, plan)?;
    if !plan.is_possible {
        return Ok(Outcome::NothingMatched);
    }
    say(PREVIEWED);
    Ok(Outcome::Done)
}

#[derive(Debug, Serialize)]
pub(super) struct Changed {
    change: String,
    changed: u64,
    operation: Option<String>,
    what: String,
}

impl Changed {
    pub(super) fn new(change: impl ToString, changed: u64, operation: OperationId, what: String) -> Self {
        Self {
            change: change.to_string(),
            changed,
            operation: (changed > 0).then(|| operation.to_string()),
            what,
        }
    }

    pub(super) fn say(&self, format: Format) -> Result<Outcome, CommandError> {
        output::one(format, self)?;
        let Some(operation) = &self.operation else {
            return Ok(Outcome::NothingMatched);
        };
        say_operation(operation);
        Ok(Outcome::Done)
    }
}

pub(super) fn say_operation(id: impl ToString) {
    say_next(Command::from("outbox audit show").arg(id));
}

impl Print for Plan {
    fn text(&self) -> String {
        let mut text = match self.is_possible {
            true => format!("would {} {}\n", self.change, plain(&self.subject)),
            false => format!("{}: nothing to do\n", plain(&self.subject)),
        };
        for effect in &self.effects {
            let _ = writeln!(text, "  {}", plain(effect));
        }
        for cause in &self.causes {
            text.push_str(&recheck::line(cause));
        }
        text
    }
}

impl Print for Changed {
    fn text(&self) -> String {
        format!("{}\n", plain(&self.what))
    }
}
