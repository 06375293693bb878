//! The output of commands: tables and pages for people, JSON for programs.

use std::borrow::Cow;
use std::io::{IsTerminal as _, Write as _};

use serde::Serialize;

use super::clean::spelled_out;
pub(super) use super::clean::{clean, one_line};
use super::failure::Failure;
use super::layout::{self, Column};
use super::look::{self, Look};
use crate::clock::Timestamp;

/// Prints a line to standard output.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Prints a value as one line of JSON.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&for_stdout(&serde_json::to_string(value)?))
}

/// Returns JSON as it is printed: on a terminal without characters that act on it or are not seen.
pub(super) fn for_stdout(json: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { spelled_out(json) } else { Cow::Borrowed(json) }
}

/// Prints a line to standard error, unless it is closed.
pub(super) fn complain(text: &str) {
    drop(writeln!(std::io::stderr(), "{}", clean(text)));
}

/// The width of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The table is at most as wide as the terminal, if there is one.
    Terminal,
    /// The table is as wide as its content, and without colours.
    Content,
}

/// Formats a table of texts, at most as wide as the terminal, if there is one. The columns weigh the less the further
/// right they are.
pub(super) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    layout::table_of(header, rows, &Look::get())
}

/// Formats a table of these columns, at most as wide as the terminal, if there is one.
pub(super) fn table_with(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    layout::table(columns, rows, &Look::get())
}

/// Formats a table of this width.
pub(super) fn table_to(fit: Fit, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let look = Look::get();
    layout::table_of(
        header,
        rows,
        &if fit == Fit::Content { Look { width: None, colors: false, ..look } } else { look },
    )
}

/// Formats a table of these columns, or says that there is nothing to show.
pub(super) fn table_or(none: &str, columns: &[Column], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() { none.to_owned() } else { table_with(columns, rows) }
}

/// Formats a table of names and values.
pub(super) fn facts_table<'a>(title: &str, facts: impl IntoIterator<Item = (&'a str, String)>) -> String {
    table(&[title, ""], facts.into_iter().map(|(name, value)| vec![name.to_owned(), value]))
}

/// A page about one thing: a line for each of its properties that has a value.
pub(super) struct Page {
    /// The width of the names.
    width: usize,
    lines: Vec<String>,
}

impl Page {
    /// Creates an empty page with names of at most this width.
    pub(super) const fn new(width: usize) -> Self {
        Self { width, lines: Vec::new() }
    }

    /// Adds a property; further lines of its value are indented.
    pub(super) fn line(&mut self, name: &str, value: &str) {
        let width = self.width;
        let value = clean(value).replace('\n', &format!("\n{:width$} ", ""));
        self.lines.push(format!("{name:<width$} {value}"));
    }

    /// Adds a property that may have no value.
    pub(super) fn option(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.line(name, value);
        }
    }

    /// Adds a time that may be unknown.
    pub(super) fn time(&mut self, name: &str, time: Option<Timestamp>) {
        self.option(name, time.map(look::date).as_deref());
    }

    /// Returns the page as a text.
    pub(super) fn text(&self) -> String {
        self.lines.join("\n").trim_end().to_owned()
    }
}

/// Indents a text, and breaks it between words at the width of the terminal, if there is one.
pub(super) fn wrap(text: &str, indent: usize) -> String {
    wrap_at(text, Look::get().width.unwrap_or(usize::MAX), indent)
}

fn wrap_at(text: &str, columns: usize, indent: usize) -> String {
    let margin = " ".repeat(indent);
    let mut lines = vec![margin.clone()];
    let mut width = indent;
    for word in text.split_whitespace() {
        let characters = word.chars().count();
        if width > indent && width + 1 + characters > columns {
            lines.push(margin.clone());
            width = indent;
        }
        let Some(line) = lines.last_mut() else { break };
        if width > indent {
            line.push(' ');
            width += 1;
        }
        line.push_str(word);
        width += characters;
    }
    lines.join("\n")
}

/// Returns the beginning of a text on one line, with an ellipsis where it is cut.
pub(super) fn shorten(text: &str, columns: usize) -> String {
    layout::cut(&one_line(text), columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_broken_between_words_and_never_within_one() {
        assert_eq!(wrap_at("one two three", 9, 2), "  one two\n  three");
        assert_eq!(wrap_at("unbreakable word", 5, 2), "  unbreakable\n  word");
        assert_eq!(wrap_at("one two three", usize::MAX, 0), "one two three");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(shorten("\u{e9}t\u{e9}\nhiver", 6), "\u{e9}t\u{e9} h\u{2026}");
        assert_eq!(shorten("short", 6), "short");
    }
}
