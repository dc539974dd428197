//! Figures: measurements with their baselines. A ratio is the median over neighbouring
//! measurements.

use std::collections::HashMap;

use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    baseline: Option<f64>,
    ratio: Option<f64>,
    target: Option<String>,
    /// Minimum and maximum of the ratio, or of the value if there is no baseline.
    spread: (f64, f64),
}

impl Figure {
    pub(crate) fn at_least(mut self, bound: f64) -> Self {
        self.target = Some(format!(">= {bound}"));
        self
    }

    pub(crate) fn at_most(mut self, bound: f64) -> Self {
        self.target = Some(format!("<= {bound}"));
        self
    }
}

#[derive(Debug, Default)]
pub(crate) struct Series(HashMap<&'static str, Vec<f64>>);

impl Series {
    pub(crate) fn add(&mut self, name: &'static str, value: f64) {
        self.0.entry(name).or_default().push(value);
    }

    fn values(&self, name: &str) -> &[f64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn alone(&self, name: &'static str, unit: &'static str) -> Figure {
        let values = self.values(name);
        Figure {
            name: name.to_owned(),
            value: median(values),
            unit,
            baseline: None,
            ratio: None,
            target: None,
            spread: spread(values),
        }
    }

    pub(crate) fn against(&self, name: &str, unit: &'static str, values: &str, baseline: &str) -> Figure {
        let (values, baselines) = (self.values(values), self.values(baseline));
        let ratios: Vec<f64> = values.iter().zip(baselines).map(|(a, b)| a / b).collect();
        Figure {
            name: name.to_owned(),
            value: median(values),
            unit,
            baseline: Some(median(baselines)),
            ratio: Some(median(&ratios)),
            target: None,
            spread: spread(&ratios),
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n => f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]),
    }
}

fn spread(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (least, most)
}

pub(crate) fn print(figures: &[Figure]) {
    let line = |cells: [&str; 7]| {
        let [name, value, unit, baseline, ratio, spread, target] = cells;
        println!(
            "| {name:<29} | {value:>8} | {unit:<11} | {baseline:>8} | {ratio:>5} | {spread:<16} | {target:<7} |"
        );
    };
    line(["figure", "value", "unit", "baseline", "ratio", "spread", "target"]);
    line(["---"; 7]);
    for figure in figures {
        line([
            &figure.name,
            &number(figure.value),
            figure.unit,
            &figure.baseline.map(number).unwrap_or_default(),
            &figure.ratio.map(number).unwrap_or_default(),
            &format!("{} to {}", number(figure.spread.0), number(figure.spread.1)),
            figure.target.as_deref().unwrap_or_default(),
        ]);
    }
}

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
        let mut series = Series::default();
        for (value, baseline) in [(50.0, 100.0), (60.0, 100.0), (30.0, 50.0)] {
            series.add("x", value);
            series.add("baseline", baseline);
        }
        let figure = series.against("x", "events/s", "x", "baseline").at_most(0.5);
        let expected = serde_json::json!({
            "name": "x", "value": 50.0, "unit": "events/s", "baseline": 100.0, "ratio": 0.6, "target": "<= 0.5",
            "spread": [0.5, 0.6],
        });
        assert_eq!(serde_json::to_value(&figure).unwrap(), expected);
    }
}
