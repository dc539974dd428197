//! `cargo xtask bench draw`: draws a picture beside each list of figures in docs/performance.
//!
//! A list is what `cargo xtask bench … --json` prints. Only figures with a target are drawn, each as a share of its target, so that one
//! mark fits all bars; the tables of the documents have the rest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

use anyhow::{Context as _, Result, anyhow};

use super::svg::{Bar, Panel, Picture};
use crate::workspace::Workspace;

const FOLDER: &str = "docs/performance";

pub(super) fn run() -> Result<ExitCode> {
    let root = Workspace::load()?.root;
    for (path, svg) in pictures(&root)? {
        fs::write(root.join(&path), svg).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Relative paths and contents, by name.
fn pictures(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let folder = root.join(FOLDER);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(Path::new(FOLDER).join(entry.ok()?.file_name())))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    let drawn = paths.into_iter().map(|path| {
        let text = fs::read_to_string(root.join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let picture = picture(&text).with_context(|| format!("{} is no list of figures", path.display()))?;
        Ok((path.with_extension("svg"), picture.svg()))
    });
    drawn.collect()
}

fn picture(json: &str) -> Result<Picture> {
    let advice = || "write what cargo xtask bench … --json prints".to_owned();
    let figures: Vec<Value> = serde_json::from_str(json).with_context(advice)?;
    let (mut at_least, mut at_most) = (Vec::new(), Vec::new());
    for figure in &figures {
        let Some(target) = figure["target"].as_str() else {
            continue;
        };
        let (is_floor, bar) =
            bar(figure, target).ok_or_else(|| anyhow!("{} is not a figure; {}", figure["name"], advice()))?;
        if is_floor { &mut at_least } else { &mut at_most }.push(bar);
    }
    let titles = [
        "More is better: a bar that reaches the line meets its target",
        "Less is better: a bar that ends before the line meets its target",
    ];
    let panels = titles.into_iter().zip([at_least, at_most]);
    let panels = panels.map(|(title, bars)| Panel {
        title: title.to_owned(),
        bars,
    });
    Ok(Picture {
        panels: panels.filter(|panel| !panel.bars.is_empty()).collect(),
    })
}

/// Whether more is better, and the figure as a share of its target.
fn bar(figure: &Value, target: &str) -> Option<(bool, Bar)> {
    let (comparison, bound) = target.split_once(' ')?;
    let bound: f64 = bound.parse().ok()?;
    let (is_floor, relation) = match comparison {
        ">=" => (true, "at least"),
        "<=" => (false, "at most"),
        _ => return None,
    };
    let (measured, unit) = match figure["ratio"].as_f64() {
        Some(ratio) => (ratio, String::new()),
        None => {
            let unit = figure["unit"].as_str()?;
            // `1.7/s` instead of `1.7 1/s`.
            let unit = unit
                .strip_prefix('1')
                .map_or_else(|| format!(" {unit}"), str::to_owned);
            (figure["value"].as_f64()?, unit)
        }
    };
    let spread = (figure["spread"][0].as_f64()?, figure["spread"][1].as_f64()?);
    let is_met = if is_floor {
        measured >= bound
    } else {
        measured <= bound
    };
    let verdict = if is_met { "met" } else { "missed" };
    let bar = Bar {
        name: figure["name"].as_str()?.to_owned(),
        label: format!("{measured}{unit}, {relation} {bound}: {verdict}"),
        length: measured / bound,
        spread: (spread.0 / bound, spread.1 / bound),
        is_met,
    };
    Some((is_floor, bar))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: &str = r#"[
        {"name": "a", "value": 50, "unit": "events/s", "baseline": 100, "ratio": 0.5, "target": ">= 0.4", "spread": [0.4, 0.6]},
        {"name": "b", "value": 6, "unit": "ms", "baseline": null, "ratio": null, "target": "<= 5", "spread": [6, 6]},
        {"name": "c", "value": 6, "unit": "ms", "baseline": null, "ratio": null, "target": null, "spread": [6, 6]},
        {"name": "d", "value": 1.7, "unit": "1/s", "baseline": null, "ratio": null, "target": "<= 2", "spread": [1.7, 1.7]}
    ]"#;

    #[test]
    fn figures_with_a_target_are_drawn_as_a_share_of_it() {
        let Picture { panels } = picture(FIGURES).unwrap();
        let [at_least, at_most] = &panels[..] else {
            panic!("{panels:?}")
        };
        assert!(at_least.bars[0].is_met && at_least.bars[0].length > 1.0);
        assert_eq!(at_least.bars[0].label, "0.5, at least 0.4: met");
        assert!(!at_most.bars[0].is_met && at_most.bars[0].length > 1.0);
        assert_eq!(at_most.bars[0].label, "6 ms, at most 5: missed");
        assert_eq!(at_most.bars[1].label, "1.7/s, at most 2: met");
        assert_eq!((at_least.bars.len(), at_most.bars.len()), (1, 2));
    }

    #[test]
    fn what_is_no_figure_is_named() {
        let error = picture(r#"[{"name": "a", "target": "about 3"}]"#).unwrap_err();
        assert!(
            format!("{error:#}").contains("\"a\" is not a figure"),
            "{}",
            format!("{error:#}")
        );
    }
}
