//! What stands between `--yes` and a change: with several contexts one that is named, and in production the number of what is changed.
//!
//! Invariant: nobody is asked a question without a terminal, so a script never hangs.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use clap::Args;

use super::place::Place;
use crate::failure::CommandError;
use crate::output::say;

/// How a change is confirmed.
#[derive(Debug, Clone, Copy, Default, Args)]
#[non_exhaustive]
pub struct ConfirmArguments {
    /// Do it only if it changes so many, by the number of the preview. A context with `production = true` needs it, unless a terminal can be asked.
    #[arg(long, value_name = "COUNT", requires = "yes")]
    pub confirm: Option<u64>,
}

impl ConfirmArguments {
    /// Lets a change of `count` things go on, or refuses it. `count` is asked for only if it is needed; of nothing there is nothing to confirm.
    pub(super) async fn check(
        self,
        place: &Place,
        count: impl Future<Output = Result<u64, CommandError>>,
    ) -> Result<(), CommandError> {
        let context = place.context.production.then_some(place.context.name.as_deref());
        if context.is_none() && self.confirm.is_none() {
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
                "it would change {count}, and not {confirmed}: nothing was changed; look again without `--yes`, then repeat it with `--confirm {count}`"
            )));
        }
        let name = context.flatten().unwrap_or_default();
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(CommandError::configuration(format!(
                "context `{name}` is production: nothing was changed; repeat it with `--confirm {count}`"
            )));
        }
        say(&format!(
            "context `{name}` is production, and this changes {count}"
        ));
        // The thread waits for a line; when the program is interrupted, nothing was changed.
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

/// Whether somebody types the number.
fn typed(count: u64) -> std::io::Result<bool> {
    let mut terminal = std::io::stderr().lock();
    write!(terminal, "type {count} to go on: ")?;
    terminal.flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim() == count.to_string())
}
