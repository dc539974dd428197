//! How far something is that takes long, for people at a terminal.
//!
//! Invariant: nothing is shown unless the standard error is a terminal and the answer is for people: not to a pipe, not beside JSON, CSV or names, and not with `--quiet`.

use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::arguments::PlaceArguments;
use super::place::Place;
use crate::output::Format;

/// How often an operation is looked at that another connection carries out.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A line that is drawn anew, and gone when this is dropped.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    begun: Instant,
}

impl Progress {
    /// Of a command with these arguments.
    pub(super) fn of(arguments: &PlaceArguments) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let bar = is_shown(arguments.output, arguments.quiet, is_terminal).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            // A template that cannot be read is a mistake of this program: then the bar is a plain one.
            match ProgressStyle::with_template("{msg}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self {
            bar,
            begun: Instant::now(),
        }
    }

    /// Whether somebody sees it. What only serves it need not be asked for otherwise.
    pub(super) fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// Shows what is done, how many are done, and of how many if that is known.
    pub(super) fn show(&self, what: &str, done: u64, total: Option<u64>) {
        if let Some(bar) = &self.bar {
            bar.set_message(line(what, done, total, self.begun.elapsed()));
        }
    }

    /// Does work, and meanwhile shows how far it is, by what `look` sees over a connection that only reads.
    pub(super) async fn watch<T>(
        &self,
        place: &Place,
        (what, total): (&str, Option<u64>),
        look: impl AsyncFn(&Place) -> Option<u64>,
        work: impl Future<Output = T>,
    ) -> T {
        if !self.is_shown() {
            return work.await;
        }
        let watching = async {
            self.show(what, 0, total);
            if let Ok(reading) = place.reading(1).await {
                loop {
                    tokio::time::sleep(LOOK_EVERY).await;
                    if let Some(done) = look(&reading).await {
                        self.show(what, done, total);
                    }
                }
            }
            // Without a second connection the work goes on unseen.
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            done = work => done,
            never = watching => match never {},
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn is_shown(format: Format, quiet: bool, is_terminal: bool) -> bool {
    is_terminal && !quiet && matches!(format, Format::Table | Format::Wide)
}

/// `retry: 3000 of 12000 (25%), 1204/s, 8s left`
fn line(what: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let mut line = format!("{what}: {done}");
    let per_second = done.checked_div(elapsed.as_secs()).unwrap_or_default();
    if let Some(total) = total.filter(|total| *total > 0) {
        let percent = (u128::from(done) * 100 / u128::from(total)).min(100);
        line.push_str(&format!(" of {total} ({percent}%)"));
    }
    if per_second > 0 {
        line.push_str(&format!(", {per_second}/s"));
        let left = total.and_then(|total| total.checked_sub(done));
        if let Some(left) = left.filter(|left| *left > 0) {
            line.push_str(&format!(", {}s left", left.div_ceil(per_second)));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_for_people_at_a_terminal() {
        assert!(is_shown(Format::Table, false, true) && is_shown(Format::Wide, false, true));
        assert!(!is_shown(Format::Table, false, false), "a pipe");
        assert!(!is_shown(Format::Table, true, true), "--quiet");
        for format in [Format::Json, Format::Jsonl, Format::Csv, Format::Name] {
            assert!(!is_shown(format, false, true), "{format:?}");
        }
    }

    #[test]
    fn a_line_says_what_is_known() {
        let check = |done, total, seconds, expected: &str| {
            let said = line("retry", done, total, Duration::from_secs(seconds));
            assert_eq!(said, expected);
        };
        check(0, None, 0, "retry: 0");
        check(7, None, 0, "retry: 7");
        check(3_000, None, 2, "retry: 3000, 1500/s");
        check(
            3_000,
            Some(12_000),
            2,
            "retry: 3000 of 12000 (25%), 1500/s, 6s left",
        );
        check(3, Some(4), 9, "retry: 3 of 4 (75%)");
        // Others may have added some since they were counted.
        check(
            u64::MAX,
            Some(4),
            1,
            &format!("retry: {} of 4 (100%), {}/s", u64::MAX, u64::MAX),
        );
        check(0, Some(0), 1, "retry: 0");
    }
}
