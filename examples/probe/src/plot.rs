//! Plots as inline SVG. Colours are variables of the page's style sheet, so that they suit light and dark.

use std::fmt::Write as _;

/// Lines over sizes or threads, which double from one to the next: the axis is logarithmic.
pub struct Plot<'a> {
    /// What it shows, for those who cannot see it.
    pub title: &'a str,
    pub x_label: &'a str,
    pub y_label: &'a str,
    /// Where the axis is labelled, in ascending order.
    pub x_ticks: Vec<(f64, String)>,
    pub lines: Vec<Line>,
    /// A dashed line across: its name and its height.
    pub limit: Option<(String, f64)>,
}

pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 52.0;

/// How many colours the style sheet has.
pub const COLOURS: usize = 8;

impl Plot<'_> {
    /// The plot, and its legend.
    pub fn to_html(&self) -> String {
        let mut svg = String::new();
        let heights = self
            .lines
            .iter()
            .flat_map(|line| line.points.iter().map(|(_, y)| *y));
        let highest = heights
            .chain(self.limit.iter().map(|(_, y)| *y))
            .fold(0.0, f64::max);
        let step = nice_step(highest);
        let top = (highest * 1.04 / step).ceil().max(1.0) * step;
        let (first, last) = match (self.x_ticks.first(), self.x_ticks.last()) {
            (Some(first), Some(last)) => (first.0.log2(), last.0.log2()),
            _ => (0.0, 1.0),
        };
        let x_of = |x: f64| {
            // (A single place is in the middle.)
            let share = if last > first {
                (x.log2() - first) / (last - first)
            } else {
                0.5
            };
            LEFT + 12.0 + share * (WIDTH - LEFT - RIGHT - 24.0)
        };
        let y_of = |y: f64| HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM);

        let title = escaped(self.title);
        _ = write!(
            svg,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\"><title>{title}</title>"
        );
        let ticks = (0..).map(|tick| f64::from(tick) * step);
        for tick in ticks.take_while(|tick| *tick <= top * 1.0001) {
            let y = y_of(tick);
            let (right, label) = (WIDTH - RIGHT, plain(tick));
            _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 8.0,
                y + 4.0
            );
        }
        for (x, label) in &self.x_ticks {
            let (x, bottom) = (x_of(*x), HEIGHT - BOTTOM);
            _ = write!(
                svg,
                "<line class=\"axis\" x1=\"{x:.1}\" y1=\"{bottom}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 5.0,
                bottom + 20.0,
                escaped(label)
            );
        }
        let (bottom, right, middle) = (
            HEIGHT - BOTTOM,
            WIDTH - RIGHT,
            (TOP + HEIGHT - BOTTOM) / 2.0,
        );
        _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(16 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 10.0,
            escaped(self.x_label),
            escaped(self.y_label)
        );
        let mut legend = String::new();
        for (index, line) in self.lines.iter().enumerate() {
            let colour = index % COLOURS;
            let points: Vec<String> = line
                .points
                .iter()
                .map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_of(*y)))
                .collect();
            _ = write!(
                svg,
                "<polyline class=\"s{colour}\" points=\"{}\"/>",
                points.join(" ")
            );
            for (x, y) in &line.points {
                let what = format!("{}: {}", line.name, crate::words::number(*y));
                _ = write!(
                    svg,
                    "<g class=\"m{colour}\" transform=\"translate({:.1} {:.1})\"><title>{}</title>{}</g>",
                    x_of(*x),
                    y_of(*y),
                    escaped(&what),
                    mark(index)
                );
            }
            _ = write!(
                legend,
                "<li><svg viewBox=\"-14 -7 28 14\" aria-hidden=\"true\"><line class=\"s{colour}\" x1=\"-14\" y1=\"0\" x2=\"14\" y2=\"0\"/>\
                 <g class=\"m{colour}\">{}</g></svg>{}</li>",
                mark(index),
                escaped(&line.name)
            );
        }
        // On top, where lines would cross its name.
        if let Some((name, limit)) = &self.limit {
            let y = y_of(*limit);
            _ = write!(
                svg,
                "<line class=\"limit\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
                 <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT + 8.0,
                y - 6.0,
                escaped(name)
            );
        }
        format!("<figure>{svg}</svg><ul class=\"legend\">{legend}</ul></figure>")
    }
}

/// A mark of its own for each line, for those who do not tell the colours apart.
fn mark(index: usize) -> &'static str {
    match index % 4 {
        0 => "<circle r=\"4\"/>",
        1 => "<rect x=\"-3.6\" y=\"-3.6\" width=\"7.2\" height=\"7.2\"/>",
        2 => "<path d=\"M0-5 4.6 3.6-4.6 3.6z\"/>",
        _ => "<path d=\"M0-5.2 5.2 0 0 5.2-5.2 0z\"/>",
    }
}

pub struct Bar {
    pub name: String,
    pub value: f64,
    /// What others are compared with is paler.
    pub is_reference: bool,
}

/// Horizontal bars, each with its number behind it.
pub fn bars(title: &str, unit: &str, bars: &[Bar]) -> String {
    const ROW: f64 = 30.0;
    const NAMES: f64 = 210.0;
    const NUMBERS: f64 = 130.0;
    let (title, height) = (escaped(title), bars.len() as f64 * ROW + 8.0);
    let most = bars
        .iter()
        .map(|bar| bar.value)
        .fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\"><title>{title}</title>"
    );
    for (index, bar) in bars.iter().enumerate() {
        let (name, value) = (&bar.name, &bar.value);
        let class = if bar.is_reference {
            "bar reference"
        } else {
            "bar"
        };
        let (y, width) = (
            index as f64 * ROW + 4.0,
            value / most * (WIDTH - NAMES - NUMBERS),
        );
        let number = if *value < 100.0 {
            crate::words::number(*value)
        } else {
            crate::words::count(*value)
        };
        _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{NAMES}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" rx=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{number} {}</text>",
            NAMES - 10.0,
            y + 16.0,
            escaped(name),
            ROW - 8.0,
            NAMES + width + 8.0,
            y + 16.0,
            escaped(unit)
        );
    }
    format!("<figure>{svg}</svg></figure>")
}

/// The distance of some five ticks: 1, 2 or 5 times a power of ten.
fn nice_step(highest: f64) -> f64 {
    let rough = highest.max(1e-3) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps
        .into_iter()
        .find(|step| *step >= rough * 0.9999)
        .unwrap_or(10.0 * power)
}

/// A tick's number, without zeros behind it.
fn plain(value: f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

/// A text that HTML shows as it is.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(
            [55.4, 63.0, 4.9, 120.0].map(nice_step),
            [20.0, 20.0, 1.0, 50.0]
        );
        assert_eq!([0.0, 0.1 + 0.2, 20.0].map(plain), ["0", "0.3", "20"]);
    }

    #[test]
    fn points_lie_within_the_plot() {
        let plot = Plot {
            title: "a <title>",
            x_label: "threads",
            y_label: "GB/s",
            x_ticks: vec![(1.0, "1".to_owned()), (8.0, "8".to_owned())],
            lines: vec![Line {
                name: "memcpy".to_owned(),
                points: vec![(1.0, 0.0), (8.0, 50.0)],
            }],
            limit: Some(("the link".to_owned(), 63.0)),
        };
        let html = plot.to_html();
        // 0 is at the bottom and on the left, 50 of 80 is higher up and on the right.
        assert!(html.contains("points=\"76.0,308.0 692.0,128.0\""), "{html}");
        assert!(
            html.contains("a &lt;title&gt;") && !html.contains("<title>a <"),
            "{html}"
        );
    }
}
