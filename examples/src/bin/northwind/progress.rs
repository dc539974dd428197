//! Shows the progress of a run.

use std::io::Write as _;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::order::Expected;
use crate::setup::Part;
use crate::watch::Counts;

/// Progress bars on standard error, or nothing but warnings.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    all: MultiProgress,
    /// Orders, published messages, then the effects of each consumer.
    bars: Vec<ProgressBar>,
}

impl Progress {
    /// Bars whose ends are the expected numbers. There are none if standard error is not a
    /// terminal.
    pub(crate) fn new(expected: Expected, quiet: bool) -> Self {
        let all = MultiProgress::with_draw_target(match quiet {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr(),
        });
        let style = ProgressStyle::with_template("{prefix:>14} {bar:40} {pos:>6} of {len}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let consumers = Part::CONSUMERS
            .map(Part::name)
            .into_iter()
            .zip(expected.effects());
        let bars = [("orders", expected.orders), ("published", expected.messages())]
            .into_iter()
            .chain(consumers)
            .map(|(name, length)| {
                let bar = ProgressBar::new(length)
                    .with_style(style.clone())
                    .with_prefix(name);
                all.add(bar)
            })
            .collect();
        Self { all, bars }
    }

    /// Moves the bars.
    pub(crate) fn show(&self, counts: &Counts) {
        let positions = [counts.orders, counts.published]
            .into_iter()
            .chain(counts.effects);
        for (bar, position) in self.bars.iter().zip(positions) {
            bar.set_position(position);
        }
    }

    /// Prints a warning between the bars. It goes to standard error, so it appears with `--json`
    /// too.
    pub(crate) fn warn(&self, text: &str) {
        tracing::warn!("{text}");
        self.all.suspend(|| {
            let _ = writeln!(std::io::stderr(), "warning: {text}");
        });
    }

    /// Ends the bars at their current values.
    pub(crate) fn finish(&self) {
        self.bars.iter().for_each(ProgressBar::abandon);
        if !self.all.is_hidden() {
            let _ = writeln!(std::io::stderr());
        }
    }
}
