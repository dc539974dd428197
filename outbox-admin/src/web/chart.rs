//! A line over the last hour, drawn on the server.
//!
//! Invariants: the picture has its values in its title and in a table beside it, so nobody needs to see it; nothing in it is inline style, which the policy of
//! the pages forbids. Where nothing was sampled, the line has a gap.

use std::fmt::Write as _;

use maud::{Markup, html};
use time::OffsetDateTime;

use super::layout;

/// The time that a chart shows, in seconds.
const SPAN: f64 = 3600.0;

/// The size of a picture in units of its own.
const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

/// A gap in time beyond which points are not joined, in seconds.
const GAP: f64 = 45.0;

/// Rows of the table, at the most.
const ROWS_MAX: usize = 30;

/// A line over time.
pub(super) struct Chart<'a> {
    /// Unique within the page.
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    /// How a value is written.
    pub(super) text: fn(f64) -> String,
    /// Values with their times, oldest first.
    pub(super) values: &'a [(OffsetDateTime, Option<f64>)],
}

impl Chart<'_> {
    /// The picture and its table. `now` is the right end of it.
    pub(super) fn draw(&self, now: OffsetDateTime) -> Markup {
        let known: Vec<f64> = self.values.iter().filter_map(|(_, value)| *value).collect();
        let highest = known.iter().copied().fold(0.0, f64::max);
        let top = round_up(highest);
        let last = self.values.last().and_then(|(_, value)| *value);
        let shown = last.map_or_else(|| "–".to_owned(), self.text);
        let title = match known.len() {
            0 => format!("{}: nothing sampled yet", self.title),
            _ => format!(
                "{} over the last hour: now {shown}, highest {}",
                self.title,
                (self.text)(highest)
            ),
        };
        html! {
            figure.chart {
                figcaption { span { (self.title) } strong { (shown) } }
                div.plot {
                    span.top aria-hidden="true" { ((self.text)(top)) }
                    svg role="img" aria-labelledby=(self.id) viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" {
                        title id=(self.id) { (title) }
                        @for y in [0.5, HEIGHT / 2.0, HEIGHT - 0.5] {
                            line.grid x1="0" x2=(WIDTH) y1=(y) y2=(y) {}
                        }
                        @for points in self.lines(now, top) {
                            polyline.line points=(points) {}
                        }
                    }
                    div.axis aria-hidden="true" { span { "60 min ago" } span { "30" } span { "now" } }
                }
                @if known.is_empty() {
                    p.quiet { "Nothing sampled yet." }
                } @else {
                    details { summary { "As a table" } (self.table()) }
                }
            }
        }
    }

    /// The points of each unbroken part of the line.
    fn lines(&self, now: OffsetDateTime, top: f64) -> Vec<String> {
        let (mut lines, mut line, mut before): (Vec<String>, String, Option<f64>) =
            (Vec::new(), String::new(), None);
        for (at, value) in self.values {
            let ago = (now - *at).as_seconds_f64();
            let is_gap = before.is_none_or(|before| before - ago > GAP);
            if (is_gap || value.is_none()) && !line.is_empty() {
                lines.push(std::mem::take(&mut line));
            }
            before = value.map(|_| ago);
            let Some(value) = value.filter(|_| (0.0..=SPAN).contains(&ago)) else {
                continue;
            };
            let x = WIDTH - ago / SPAN * WIDTH;
            let y = HEIGHT - 1.0 - (value / top).clamp(0.0, 1.0) * (HEIGHT - 2.0);
            // Writing to a `String` does not fail.
            let _ = write!(line, "{x:.1},{y:.1} ");
        }
        lines.push(line);
        lines.retain(|line| !line.is_empty());
        lines
    }

    fn table(&self) -> Markup {
        let step = self.values.len().div_ceil(ROWS_MAX).max(1);
        // The last one is always there.
        let rows = self.values.iter().rev().step_by(step);
        let row = |(at, value): &(OffsetDateTime, Option<f64>)| {
            html! {
                th scope="row" { (layout::time(*at)) }
                td.number { (value.map_or_else(|| "–".to_owned(), self.text)) }
            }
        };
        let rows: Vec<Markup> = rows.map(row).collect();
        layout::table(
            &format!("{}, newest first", self.title),
            &["At (UTC)", self.title],
            &rows,
        )
    }
}

/// The next of 1, 2 and 5 with zeros, so that the scale is a number that people read.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let decade = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
    steps.into_iter().find(|step| *step >= value).unwrap_or(value)
}

/// How values become numbers and texts.
pub(super) mod numbers {
    /// A count as a number of a chart.
    #[expect(clippy::cast_precision_loss, reason = "a chart shows three digits")]
    pub(in crate::web) fn of(count: u64) -> f64 {
        count as f64
    }

    /// A number with one digit behind the point where it is small.
    pub(in crate::web) fn plain(value: f64) -> String {
        match value {
            value if value > 0.0 && value < 10.0 => format!("{value:.1}"),
            value => format!("{value:.0}"),
        }
    }

    /// Milliseconds, or seconds where they are many.
    pub(in crate::web) fn millis(value: f64) -> String {
        match value {
            value if value >= 10_000.0 => format!("{:.1} s", value / 1000.0),
            value => format!("{value:.0} ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use time::Duration;

    use super::*;

    fn text(value: f64) -> String {
        format!("{value:.1}")
    }

    fn check(values: &[(i64, Option<f64>)], expected: &[&str]) {
        let now = OffsetDateTime::UNIX_EPOCH + Duration::hours(2);
        let values: Vec<_> = values
            .iter()
            .map(|(ago, value)| (now - Duration::seconds(*ago), *value))
            .collect();
        let chart = Chart {
            id: "x",
            title: "X",
            text,
            values: &values,
        };
        assert_eq!(chart.lines(now, 10.0), expected);
        assert!(chart.draw(now).into_string().contains("<title id=\"x\">X"));
    }

    #[test]
    fn a_line_runs_from_the_left_to_now_and_breaks_where_nothing_was_sampled() {
        check(&[], &[]);
        check(
            &[(30, Some(0.0)), (20, Some(10.0)), (0, Some(5.0))],
            &["595.0,119.0 596.7,1.0 600.0,60.0 "],
        );
        check(
            &[(1800, Some(0.0)), (600, Some(0.0)), (590, None), (580, Some(0.0))],
            &["300.0,119.0 ", "500.0,119.0 ", "503.3,119.0 "],
        );
        check(&[(4000, Some(1.0))], &[]);
    }

    #[test]
    fn the_scale_ends_at_a_number_that_people_read() {
        let ends = [0.0, 0.003, 1.0, 1.1, 42.0, 870.0].map(round_up);
        assert_eq!(
            ends.map(|end| format!("{end:.3}")),
            ["1.000", "0.005", "1.000", "2.000", "50.000", "1000.000"]
        );
    }
}
