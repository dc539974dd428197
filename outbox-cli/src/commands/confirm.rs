//! Confirmation of production changes by their count.
//!
//! Invariant: without a terminal there is no prompt, so scripts never hang.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use clap::Args;

use super::place::Place;
use crate::failure::CommandError;
use crate::output::say;

/// Confirmation options.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct ConfirmArguments {
    /// Change only if the preview counts exactly this number. Required with `production = true`
    /// without a terminal.
    #[arg(long, value_name = "COUNT", requires = "yes")]
    pub confirm: Option<u64>,
}

impl ConfirmArguments {
    /// Rejects an unconfirmed change. `count` is read only if needed; a count of zero needs no
    /// confirmation.
    pub(super) async fn check(
        self,
        place: &Place,
        count: impl Future<Output = Result<u64, CommandError>>,
    ) -> Result<(), CommandError> {
        if !place.is_production() && self.confirm.is_none() {
            return Ok(());
        }
        let count = count.await?;
        if count == 0 {
            return Ok(());
        }
        if let Some(confirmed) = self.confirm {
            if confirmed == count {
                return Ok(());
            }
            return Err(CommandError::configuration(format!(
                "the preview counts {count}, not {confirmed}: nothing was changed; preview without `--yes`, then re-run with `--confirm {count}`"
            )));
        }
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(CommandError::configuration(format!(
                "the file has `production = true`: nothing was changed; re-run with `--confirm {count}`"
            )));
        }
        say(&format!("production: the command changes {count}"));
        // An interrupt during the prompt changes nothing.
        let typed = tokio::task::spawn_blocking(move || typed(count)).await;
        if typed
            .map_err(CommandError::failed)?
            .map_err(CommandError::failed)?
        {
            return Ok(());
        }
        Err(CommandError::configuration(format!(
            "that was not {count}: nothing was changed"
        )))
    }
}

fn typed(count: u64) -> std::io::Result<bool> {
    let mut terminal = std::io::stderr().lock();
    write!(terminal, "type {count} to continue: ")?;
    terminal.flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim() == count.to_string())
}
