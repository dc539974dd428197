//! Writes horizontal bars as SVG.
//!
//! The same bars always give the same text, so a picture can be compared with a fresh one. Not here: the figures, see [`super::draw`].

use std::fmt::Write as _;

const WIDTH: f64 = 820.0;
/// Where the bars begin; names stand to the left.
const BARS_AT: f64 = 250.0;
/// From the beginning of the bars to the mark that stands for 1.
const UNIT: f64 = 260.0;
/// Longer bars are cut off here.
const LONGEST: f64 = 1.3;
const ROW: f64 = 26.0;
const TITLE: f64 = 40.0;
/// Dark on light, or light on dark where the reader prefers that. The page is painted as well, so text is readable on whatever surrounds the picture.
const STYLE: &str = "<style>\n\
     .page { fill: #ffffff } .ink { fill: #222222 } .line { stroke: #222222; stroke-width: 1.5 } .met { fill: #4c9a6a } .missed { fill: #d9863d }\n\
     @media (prefers-color-scheme: dark) { .page { fill: #0d1117 } .ink { fill: #e6edf3 } .line { stroke: #e6edf3 } .met { fill: #2f7d52 } .missed { fill: #b3651f } }\n\
     </style>\n";

/// A picture: panels below each other.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) panels: Vec<Panel>,
}

#[derive(Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) bars: Vec<Bar>,
}

/// A bar beside the mark at 1.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    /// What stands to the right.
    pub(super) label: String,
    pub(super) length: f64,
    /// Smallest and largest measurement.
    pub(super) spread: (f64, f64),
    pub(super) is_met: bool,
}

impl Picture {
    pub(super) fn svg(&self) -> String {
        let rows: usize = self.panels.iter().map(|panel| panel.bars.len()).sum();
        let height = sum(rows) * ROW + sum(self.panels.len()) * TITLE + 12.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" width=\"{WIDTH:.0}\" height=\"{height:.0}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n{STYLE}<rect width=\"100%\" height=\"100%\" class=\"page\"/>\n"
        );
        let mut top = 0.0;
        for panel in &self.panels {
            panel.draw(&mut svg, top);
            top += TITLE + sum(panel.bars.len()) * ROW;
        }
        svg.push_str("</svg>\n");
        svg
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, top: f64) {
        let title = escaped(&self.title);
        text(svg, 12.0, top + 25.0, " font-weight=\"bold\"", &title);
        let first = top + TITLE;
        for (n, bar) in self.bars.iter().enumerate() {
            bar.draw(svg, first + sum(n) * ROW);
        }
        let (x, end) = (BARS_AT + UNIT, first + sum(self.bars.len()) * ROW - 4.0);
        line(svg, (x, first - 4.0), (x, end));
    }
}

impl Bar {
    fn draw(&self, svg: &mut String, top: f64) {
        let end = |length: f64| BARS_AT + length.clamp(0.0, LONGEST) * UNIT;
        let class = if self.is_met { "met" } else { "missed" };
        text(svg, 12.0, top + 13.0, "", &escaped(&self.name));
        let width = end(self.length) - BARS_AT;
        let _ = writeln!(
            svg,
            "<rect x=\"{BARS_AT:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"18\" class=\"{class}\"/>"
        );
        let (least, most) = self.spread;
        if least < most {
            let middle = top + 9.0;
            line(svg, (end(least), middle), (end(most), middle));
        }
        text(
            svg,
            BARS_AT + LONGEST * UNIT + 12.0,
            top + 13.0,
            "",
            &escaped(&self.label),
        );
    }
}

fn text(svg: &mut String, x: f64, y: f64, attributes: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"ink\"{attributes}>{text}</text>"
    );
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" class=\"line\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn sum(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(length: f64) -> Bar {
        Bar {
            name: "x".to_owned(),
            label: "0.5 (>= 1)".to_owned(),
            length,
            spread: (length, length),
            is_met: false,
        }
    }

    fn picture(bars: Vec<Bar>) -> String {
        let title = "Panel".to_owned();
        Picture {
            panels: vec![Panel { title, bars }],
        }
        .svg()
    }

    #[test]
    fn a_bar_is_as_long_as_its_figure() {
        assert!(picture(vec![bar(0.5)]).contains("width=\"130.0\""));
        assert!(picture(vec![bar(5.0)]).contains("width=\"338.0\""), "cut off");
    }

    #[test]
    fn text_is_escaped() {
        let svg = picture(vec![bar(0.5)]);
        assert!(svg.contains(">0.5 (&gt;= 1)</text>"), "{svg}");
    }

    #[test]
    fn the_picture_is_as_high_as_its_bars() {
        assert!(picture(vec![bar(1.0), bar(1.0)]).contains("height=\"104\""));
    }
}
