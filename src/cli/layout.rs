//! The layout of tables: which columns a terminal has room for, and how wide each of them is.
//!
//! A row is one line, whatever is in it. Where the terminal is too narrow, texts are cut first, then the columns of the
//! least weight are left out.

use std::collections::HashMap;

use clap::builder::styling::{AnsiColor, Effects, Style};
use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthStr as _;
use uuid::Uuid;

use super::clean::one_line;
use super::look::Look;

/// What stands between two columns.
const GAP: &str = "  ";
/// The width below which a text is not cut.
const LEAST_TEXT: usize = 12;
/// The fewest characters of a short id.
const LEAST_ID: usize = 8;
/// The mark of a text that was cut.
const ELLIPSIS: &str = "\u{2026}";

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    name: &'static str,
    content: Content,
    /// On a narrow terminal, the columns of the least weight are left out first, and the last of several.
    weight: u8,
    /// Whether only a wide table has the column.
    only_wide: bool,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Texts, which may be cut.
    Text,
    /// Words, numbers and times, which are shown whole.
    Word,
    /// States, which have colours.
    State,
    /// Ids of jobs, of which as much is shown as tells them apart.
    Id,
}

impl Column {
    const fn of(name: &'static str, content: Content) -> Self {
        Self { name, content, weight: 50, only_wide: false }
    }

    /// A column of texts, which are cut where there is no room.
    pub(super) const fn text(name: &'static str) -> Self {
        Self::of(name, Content::Text)
    }

    /// A column of words, numbers or times, which are shown whole.
    pub(super) const fn word(name: &'static str) -> Self {
        Self::of(name, Content::Word)
    }

    /// A column of states, which are coloured by their first word.
    pub(super) const fn state(name: &'static str) -> Self {
        Self::of(name, Content::State).weight(90)
    }

    /// A column of ids of jobs, which are shown short where that tells them apart.
    pub(super) const fn id(name: &'static str) -> Self {
        Self::of(name, Content::Id).weight(100)
    }

    /// Gives the column a weight; by default it is 50, that of a state 90 and that of an id 100.
    pub(super) const fn weight(self, weight: u8) -> Self {
        Self { weight, ..self }
    }

    /// Shows the column only in wide tables.
    pub(super) const fn only_wide(self) -> Self {
        Self { only_wide: true, ..self }
    }
}

impl From<&Self> for Column {
    fn from(column: &Self) -> Self {
        *column
    }
}

/// One column with its cells, as it is laid out.
struct Laid {
    name: String,
    content: Content,
    weight: u8,
    cells: Vec<String>,
    width: usize,
}

impl Laid {
    /// Returns the least width to which the column can be cut.
    fn least(&self) -> usize {
        match self.content {
            Content::Text => self.width.min(LEAST_TEXT.max(self.name.width())),
            Content::Word | Content::State | Content::Id => self.width,
        }
    }
}

/// Formats a table of columns whose names are known in advance.
pub(super) fn table(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>, look: &Look) -> String {
    let named = columns.iter().map(|column| (column.name.to_owned(), *column));
    lay_out(named.collect(), rows, look)
}

/// Formats a table of texts whose columns weigh the less the further right they are.
pub(super) fn table_of(names: &[&str], rows: impl IntoIterator<Item = Vec<String>>, look: &Look) -> String {
    let column = |(place, name): (usize, &&str)| {
        let weight = 100 - u8::try_from(place).unwrap_or(u8::MAX).min(100);
        ((*name).to_owned(), Column::text("").weight(weight))
    };
    lay_out(names.iter().enumerate().map(column).collect(), rows, look)
}

fn lay_out(columns: Vec<(String, Column)>, rows: impl IntoIterator<Item = Vec<String>>, look: &Look) -> String {
    let mut laid: Vec<(bool, Laid)> = Vec::with_capacity(columns.len());
    for (name, Column { content, weight, only_wide, .. }) in columns {
        let shown = look.wide || !only_wide;
        laid.push((shown, Laid { name: one_line(&name), content, weight, cells: Vec::new(), width: 0 }));
    }
    let mut count = 0;
    for row in rows {
        count += 1;
        let cells = row.into_iter().chain(std::iter::repeat(String::new()));
        for ((_, column), cell) in laid.iter_mut().zip(cells) {
            column.cells.push(one_line(&cell));
        }
    }
    let mut laid: Vec<Laid> = laid.into_iter().filter_map(|(shown, column)| shown.then_some(column)).collect();
    for column in &mut laid {
        if column.content == Content::Id && !look.wide {
            shorten_ids(&mut column.cells);
        }
        column.width = column.cells.iter().map(|cell| cell.width()).fold(column.name.width(), usize::max);
    }
    if let Some(width) = look.width.filter(|_| !look.wide) {
        fit(&mut laid, width);
    }
    let head = Style::new().effects(if look.colors { Effects::BOLD } else { Effects::new() });
    let mut lines = vec![line(laid.iter().map(|column| (column, column.name.as_str(), head)))];
    lines.push("\u{2500}".repeat(total(laid.iter().map(|column| column.width))));
    for row in 0..count {
        let cells = laid.iter().map(|column| {
            let cell = column.cells.get(row).map_or("", String::as_str);
            let style = if look.colors && column.content == Content::State { style_of(cell) } else { Style::new() };
            (column, cell, style)
        });
        lines.push(line(cells));
    }
    lines.join("\n")
}

/// Leaves columns out, and cuts others, until the table is at most this wide.
fn fit(columns: &mut Vec<Laid>, width: usize) {
    while columns.len() > 1 && total(columns.iter().map(Laid::least)) > width {
        let lightest = columns.iter().map(|column| column.weight).min().unwrap_or_default();
        let Some(last) = columns.iter().rposition(|column| column.weight == lightest) else { break };
        columns.remove(last);
    }
    let mut over = total(columns.iter().map(|column| column.width)).saturating_sub(width);
    // The widest text gives way first.
    while over > 0 {
        let widest =
            columns.iter_mut().filter(|column| column.width > column.least()).max_by_key(|column| column.width);
        let Some(column) = widest else { break };
        column.width -= 1;
        over -= 1;
    }
    if let [only] = columns.as_mut_slice() {
        only.width = only.width.min(width);
    }
}

/// Returns the width of a table with columns of these widths.
fn total(widths: impl Iterator<Item = usize>) -> usize {
    widths.map(|width| width + GAP.len()).sum::<usize>().saturating_sub(GAP.len())
}

/// Writes a line of cells, each as wide as its column, without spaces at its end.
fn line<'a>(cells: impl Iterator<Item = (&'a Laid, &'a str, Style)>) -> String {
    let (mut line, mut owed) = (String::new(), 0);
    for (column, cell, style) in cells {
        let cell = cut(cell, column.width);
        if !cell.is_empty() {
            line.extend(std::iter::repeat_n(' ', owed));
            owed = 0;
            line.push_str(&format!("{style}{cell}{style:#}"));
        }
        owed += column.width.saturating_sub(cell.width()) + GAP.len();
    }
    line
}

/// Returns the text, or its beginning with an ellipsis, in at most this many columns of the terminal.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut kept, mut taken) = (String::new(), 0);
    for character in text.graphemes(true) {
        taken += character.width();
        if taken >= width {
            break;
        }
        kept.push_str(character);
    }
    kept.truncate(kept.trim_end().len());
    if width > 0 { kept + ELLIPSIS } else { kept }
}

/// Returns the colour of a state by its first word.
fn style_of(state: &str) -> Style {
    match state.split(' ').next().unwrap_or_default() {
        "running" | "leader" => AnsiColor::Cyan.on_default(),
        "completed" | "succeeded" | "performed" | "on" => AnsiColor::Green.on_default(),
        "failed" | "expired" | "missed" | "unknown" => AnsiColor::Red.on_default(),
        "retrying" | "paused" => AnsiColor::Yellow.on_default(),
        "scheduled" => AnsiColor::Blue.on_default(),
        "cancelled" | "skipped" => AnsiColor::BrightBlack.on_default(),
        _ => Style::new(),
    }
}

/// Shortens the ids that are UUIDs to their ends, as long as that tells each from all others that are listed.
fn shorten_ids(ids: &mut [String]) {
    let short: Vec<bool> = ids.iter().map(|id| is_uuid(id)).collect();
    // None begins with a hyphen, as an option does.
    for length in (LEAST_ID..36).filter(|length| ![13, 18, 23, 28].contains(length)) {
        let mut ends: HashMap<&str, &str> = HashMap::new();
        // The same job may be listed twice. An id that is no UUID could be the end of one.
        let unique = ids.iter().all(|id| {
            let end = end_of(id, length);
            *ends.entry(end).or_insert(id) == id
        });
        if unique {
            for (id, _) in ids.iter_mut().zip(short).filter(|(_, short)| *short) {
                *id = end_of(id, length).to_owned();
            }
            return;
        }
    }
}

fn is_uuid(id: &str) -> bool {
    id.len() == 36 && Uuid::try_parse(id).is_ok()
}

/// Returns the last characters of a UUID; anything else is returned as it is.
fn end_of(id: &str, length: usize) -> &str {
    if is_uuid(id) { id.get(id.len() - length..).unwrap_or(id) } else { id }
}

#[cfg(test)]
mod tests;
