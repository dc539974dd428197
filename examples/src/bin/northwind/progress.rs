//! Shows the progress of a run.

use std::io::Write as _;

use crate::order::Expected;
use crate::watch::Counts;

/// A line on standard error for each change, or only warnings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    expected: Expected,
    quiet: bool,
}

impl Progress {
    pub(crate) fn new(expected: Expected, quiet: bool) -> Self {
        Self { expected, quiet }
    }

    pub(crate) fn show(self, counts: &Counts) {
        if !self.quiet {
            let (expected, effects) = (self.expected, counts.effects);
            let _ = writeln!(
                std::io::stderr(),
                "orders {} of {}, published {} of {}, effects {effects:?} of {:?}",
                counts.orders,
                expected.orders,
                counts.published,
                expected.messages(),
                expected.effects()
            );
        }
    }

    /// Prints a warning, with `--json` too.
    pub(crate) fn warn(self, text: &str) {
        tracing::warn!("{text}");
        let _ = writeln!(std::io::stderr(), "warning: {text}");
    }
}
