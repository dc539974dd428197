//! Confirmation of production changes by their count.

use clap::Args;

use super::place::Place;
use crate::failure::CommandError;

/// Confirmation options.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct ConfirmArguments {
    /// Change only if the preview counts exactly this number. Required with `production = true`.
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
        match self.confirm {
            Some(confirmed) if confirmed == count => Ok(()),
            Some(confirmed) => Err(CommandError::configuration(format!(
                "the preview counts {count}, not {confirmed}: nothing was changed; preview without `--yes`, then re-run with `--confirm {count}`"
            ))),
            None => Err(CommandError::configuration(format!(
                "the file has `production = true`: nothing was changed; re-run with `--confirm {count}`"
            ))),
        }
    }
}
