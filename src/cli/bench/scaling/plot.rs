//! A plot of the rows as SVG: throughput, and conflicts for each claim, by the number of managers.

use std::collections::BTreeSet;

use super::row::{Protocol, Row};

/// The size of a panel's field, and of the margins at its left and at its top and bottom.
const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 70.0;
const MARGIN: f64 = 50.0;
/// How many lines cross the field.
const STEPS: u32 = 4;
/// The colours of the clusters, by their numbers of nodes.
const COLOURS: [&str; 4] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"];

/// A quantity that is drawn: its title, and how it is read.
struct Panel {
    title: &'static str,
    value: fn(&Row) -> f64,
    /// The least that the upper edge stands for.
    least: f64,
}

const PANELS: [Panel; 2] = [
    Panel { title: "jobs a second", value: |row| row.jobs_per_second, least: 1.0 },
    Panel { title: "conflicts for each claim", value: |row| row.conflicts_per_claim, least: 0.02 },
];

/// Returns the plot of the rows as an SVG image: throughput and conflicts by the number of managers.
pub(super) fn svg(rows: &[Row]) -> String {
    let clusters: BTreeSet<u64> = rows.iter().map(|row| row.elasticsearch_nodes).collect();
    let (width, height) = (2.0 * (LEFT + WIDTH) + MARGIN, HEIGHT + 2.0 * MARGIN + 20.0 * clusters.len() as f64);
    let mut parts = vec![
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\">"
        ),
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>".to_owned(),
    ];
    for (number, panel) in PANELS.iter().enumerate() {
        let left = LEFT + number as f64 * (LEFT + WIDTH);
        parts.push(format!("<g transform=\"translate({left} {MARGIN})\">"));
        parts.extend(draw(panel, rows, &clusters));
        parts.push("</g>".to_owned());
    }
    for (number, nodes) in clusters.iter().enumerate() {
        let (y, colour) = (HEIGHT + 2.0 * MARGIN + 20.0 * number as f64, colour(number));
        let plural = if *nodes == 1 { "" } else { "s" };
        parts.push(format!(
            "<text x=\"{LEFT}\" y=\"{y}\" fill=\"{colour}\">Elasticsearch with {nodes} node{plural}; broken line: the \
             textbook protocol</text>"
        ));
    }
    parts.push("</svg>\n".to_owned());
    parts.join("\n")
}

fn draw(panel: &Panel, rows: &[Row], clusters: &BTreeSet<u64>) -> Vec<String> {
    let top = rounded(rows.iter().map(panel.value).fold(panel.least, f64::max));
    let y = |value: f64| HEIGHT * (1.0 - value / top);
    // One step for each doubling of the managers.
    let most = rows.iter().filter_map(|row| row.managers).max().unwrap_or(1);
    let x = |managers: u16| WIDTH * (0.05 + 0.9 * f64::from(managers).log2() / f64::from(most.max(2)).log2());

    let mut parts = vec![format!("<text x=\"0\" y=\"-15\" font-weight=\"bold\">{}</text>", panel.title)];
    for step in 0..=STEPS {
        let value = top * f64::from(step) / f64::from(STEPS);
        let (height, label) = (y(value), label(value));
        parts.push(format!("<line x2=\"{WIDTH}\" y1=\"{height:.1}\" y2=\"{height:.1}\" stroke=\"#ddd\"/>"));
        parts.push(format!("<text x=\"-8\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", height + 4.0));
    }
    for managers in rows.iter().filter_map(|row| row.managers).collect::<BTreeSet<_>>() {
        let (x, y) = (x(managers), HEIGHT + 18.0);
        parts.push(format!("<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{managers}</text>"));
    }
    let (middle, below) = (WIDTH / 2.0, HEIGHT + 34.0);
    parts.push(format!("<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">managers</text>"));
    for (number, nodes) in clusters.iter().enumerate() {
        let colour = colour(number);
        let own = || rows.iter().filter(|row| row.elasticsearch_nodes == *nodes);
        let mut points: Vec<_> = own().filter_map(|row| Some((row.managers?, (panel.value)(row)))).collect();
        points.sort_by_key(|(managers, _)| *managers);
        let line: Vec<String> = points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        let line = line.join(" ");
        parts.push(format!("<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"));
        for (managers, value) in &points {
            let (x, y) = (x(*managers), y(*value));
            parts.push(format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
        }
        for textbook in own().filter(|row| row.protocol == Protocol::Textbook) {
            let y = y((panel.value)(textbook));
            parts.push(format!(
                "<line x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-dasharray=\"6 4\"/>"
            ));
        }
    }
    parts
}

fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

/// Returns the next 1, 2 or 5 times a power of ten, so that a scale has round numbers.
fn rounded(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(value)
}

fn label(value: f64) -> String {
    if value == 0.0 || value >= 10.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[test]
fn the_upper_edge_of_a_scale_is_a_round_number_and_not_below_the_largest_value() {
    assert_eq!([0.02, 0.021, 3.0, 7_400.0, 10_000.0].map(rounded), [0.02, 0.05, 5.0, 10_000.0, 10_000.0]);
}
