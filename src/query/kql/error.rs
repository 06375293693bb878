//! The error for a mistake in a query: its position, a description and a suggestion.

use std::fmt;

/// How many characters of a long query are shown on either side of the position.
const SHOWN_AROUND: usize = 60;

/// A mistake in a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KqlError {
    /// The position of the mistake, in characters from the start.
    pub position: usize,
    /// A description of the mistake, without a full stop.
    pub problem: String,
    /// The parts that the grammar allows at this position; empty if the mistake is not one of grammar.
    pub expected: Vec<&'static str>,
    /// A suggestion of how to correct the query, if there is one.
    pub suggestion: Option<String>,
    /// The line of the query that contains the position, shortened on both sides if it is long.
    line: String,
    /// The position in the line, in characters.
    column: usize,
}

impl KqlError {
    /// Makes an error at the byte offset `byte` of `query`.
    #[must_use]
    pub(super) fn at(query: &str, byte: usize, problem: impl Into<String>) -> Self {
        let byte = (0..=byte.min(query.len())).rev().find(|byte| query.is_char_boundary(*byte)).unwrap_or(0);
        let (before, after) = query.split_at(byte);
        let start = before.rsplit(['\n', '\r']).next().unwrap_or_default();
        let end = after.split(['\n', '\r']).next().unwrap_or_default();
        let left = start.chars().count();
        let skipped = left.saturating_sub(SHOWN_AROUND);
        let mut line = if skipped > 0 { "…".to_owned() } else { String::new() };
        let column = left - skipped + line.chars().count();
        line.extend(start.chars().skip(skipped).chain(end.chars().take(SHOWN_AROUND)).map(visible));
        if end.chars().nth(SHOWN_AROUND).is_some() {
            line.push('…');
        }
        Self {
            position: before.chars().count(),
            problem: problem.into(),
            expected: Vec::new(),
            suggestion: None,
            line,
            column,
        }
    }

    /// Adds the parts that the grammar allows at the position.
    #[must_use]
    pub(super) fn expecting(self, expected: Vec<&'static str>) -> Self {
        Self { expected, ..self }
    }

    /// Adds a suggestion.
    #[must_use]
    pub(super) fn suggesting(self, suggestion: impl Into<String>) -> Self {
        Self { suggestion: Some(suggestion.into()), ..self }
    }

    /// Returns the error for a terminal: the message, the query, and a caret under the position.
    #[must_use]
    pub fn render(&self) -> String {
        format!("{self}\n  {}\n  {}^", self.line, " ".repeat(self.column))
    }
}

/// Replaces a control character with a space, so that each character takes one column above the caret.
fn visible(character: char) -> char {
    if character.is_control() { ' ' } else { character }
}

impl fmt::Display for KqlError {
    /// Writes the error as one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at character {})", self.problem, self.position + 1)?;
        if !self.expected.is_empty() {
            write!(f, "; expected {}", listed(&self.expected))?;
        }
        if let Some(suggestion) = &self.suggestion {
            write!(f, "; {suggestion}")?;
        }
        Ok(())
    }
}

impl std::error::Error for KqlError {}

/// Joins the words: `a`, `a or b`, `a, b or c`.
fn listed(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [words @ .., last] => format!("{} or {last}", words.join(", ")),
    }
}
