//! Shows the progress of a run.

use std::io::Write as _;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::order::Expected;
use crate::setup::Part;
use crate::watch::{Counts, effects};

/// Progress bars on standard error, or nothing but warnings.
#[derive(Debug)]
pub(crate) struct Progress {
    all: MultiProgress,
    orders: ProgressBar,
    published: ProgressBar,
    effects: Vec<ProgressBar>,
}

impl Progress {
    /// Bars whose ends are the expected numbers. There are none if standard error is not a terminal.
    pub(crate) fn new(expected: Expected, quiet: bool) -> Self {
        let target = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let all = MultiProgress::with_draw_target(target);
        let style = ProgressStyle::with_template("{prefix:>14} {bar:40} {pos:>6} of {len}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = |name, length| {
            all.add(
                ProgressBar::new(length)
                    .with_style(style.clone())
                    .with_prefix(name),
            )
        };
        Self {
            orders: bar("orders", expected.orders),
            published: bar("published", expected.messages()),
            effects: Part::CONSUMERS
                .into_iter()
                .zip(effects(expected))
                .map(|(part, length)| bar(part.name(), length))
                .collect(),
            all,
        }
    }

    /// Moves the bars.
    pub(crate) fn show(&self, counts: &Counts) {
        self.orders.set_position(counts.orders);
        self.published
            .set_position(counts.committed.saturating_sub(counts.pending));
        for (bar, count) in self.effects.iter().zip(counts.effects) {
            bar.set_position(count);
        }
    }

    /// Prints a warning between the bars. It goes to standard error, so it appears with `--json` too.
    pub(crate) fn warn(&self, text: String) {
        tracing::warn!("{text}");
        self.all.suspend(|| {
            let _ = writeln!(std::io::stderr(), "warning: {text}");
        });
    }

    /// Ends the bars at their current values.
    pub(crate) fn finish(&self) {
        for bar in [&self.orders, &self.published].into_iter().chain(&self.effects) {
            bar.abandon();
        }
        if !self.all.is_hidden() {
            let _ = writeln!(std::io::stderr());
        }
    }
}
