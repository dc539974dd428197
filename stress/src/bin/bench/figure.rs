//! Figures: measurements with their baselines, and their output.
//!
//! A ratio is the median of the ratios of neighbours: the n-th measurement divided by the n-th measurement of its
//! baseline, which ran just before or after it. So a machine that changes its pace changes both.

use std::fmt::Write as _;

use serde::{Serialize, Serializer};

use crate::Result;

/// The project's target for a figure: for its ratio if it has one, otherwise for its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn text(self) -> String {
        match self {
            Self::AtLeast(bound) => format!(">= {bound}"),
            Self::AtMost(bound) => format!("<= {bound}"),
        }
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    name: String,
    /// Median.
    value: f64,
    unit: &'static str,
    /// Median of the baseline, in the same unit.
    baseline: Option<f64>,
    /// Median of the neighbours' ratios.
    ratio: Option<f64>,
    target: Option<Target>,
    /// Smallest and largest ratio, or value where there is no ratio.
    spread: (f64, f64),
}

impl Figure {
    /// A figure with a baseline; the two were measured alternately.
    pub(crate) fn against(
        name: impl Into<String>,
        unit: &'static str,
        values: &[f64],
        baselines: &[f64],
    ) -> Self {
        let ratios: Vec<f64> = values
            .iter()
            .zip(baselines)
            .map(|(value, baseline)| value / baseline)
            .collect();
        Self {
            name: name.into(),
            value: median(values),
            unit,
            baseline: Some(median(baselines)),
            ratio: Some(median(&ratios)),
            target: None,
            spread: spread(&ratios),
        }
    }

    /// A figure without a baseline.
    pub(crate) fn alone(name: impl Into<String>, unit: &'static str, values: &[f64]) -> Self {
        Self {
            name: name.into(),
            value: median(values),
            unit,
            baseline: None,
            ratio: None,
            target: None,
            spread: spread(values),
        }
    }

    /// Sets the target.
    pub(crate) fn target(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

fn spread(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (least, most)
}

/// The figures as a JSON list.
pub(crate) fn json(figures: &[Figure]) -> Result<String> {
    Ok(serde_json::to_string_pretty(figures)?)
}

/// The figures as a Markdown table.
pub(crate) fn table(figures: &[Figure]) -> String {
    let header = ["figure", "value", "unit", "baseline", "ratio", "spread", "target"].map(str::to_owned);
    let lines = figures.iter().map(|figure| {
        [
            figure.name.clone(),
            number(figure.value),
            figure.unit.to_owned(),
            figure.baseline.map(number).unwrap_or_default(),
            figure.ratio.map(number).unwrap_or_default(),
            format!("{} to {}", number(figure.spread.0), number(figure.spread.1)),
            figure.target.map(Target::text).unwrap_or_default(),
        ]
    });
    let lines: Vec<[String; 7]> = std::iter::once(header).chain(lines).collect();
    let widths: [usize; 7] = std::array::from_fn(|column| {
        lines
            .iter()
            .map(|line| line[column].len())
            .max()
            .unwrap_or_default()
    });
    let mut text = String::new();
    for (n, line) in lines.iter().enumerate() {
        for (column, cell) in line.iter().enumerate() {
            // Words are aligned to the left, numbers to the right.
            let _ = match column {
                0 | 2 | 5 | 6 => write!(text, "| {cell:<0$} ", widths[column]),
                _ => write!(text, "| {cell:>0$} ", widths[column]),
            };
        }
        text.push_str("|\n");
        if n == 0 {
            for width in widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }
    text
}

/// The value with its significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_median_of_neighbours() {
        // The machine slowed down by half. Medians of the columns would mix the two paces.
        let figure = Figure::against("x", "events/s", &[50.0, 60.0, 30.0], &[100.0, 100.0, 50.0]);
        assert_eq!(figure.ratio, Some(0.6));
        assert_eq!(figure.spread, (0.5, 0.6));
        assert_eq!((figure.value, figure.baseline), (50.0, Some(100.0)));
    }

    #[test]
    fn json_names_every_field() {
        let figure = Figure::alone("x", "ms", &[1.0, 3.0]).target(Target::AtMost(5.0));
        let value: serde_json::Value = serde_json::from_str(&json(&[figure]).unwrap()).unwrap();
        let expected = serde_json::json!([{
            "name": "x", "value": 2.0, "unit": "ms", "baseline": null, "ratio": null, "target": "<= 5", "spread": [1.0, 3.0],
        }]);
        assert_eq!(value, expected);
    }
}
