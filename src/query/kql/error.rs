//! What is wrong with a query, where, and what would be right.

use std::fmt;

/// How many characters of a long query are shown on either side of the place.
const SHOWN_AROUND: usize = 60;

/// Why a query cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KqlError {
    /// Where, in characters from the start.
    pub position: usize,
    /// What is wrong, in a sentence without its end.
    pub problem: String,
    /// What could stand there, where it is the form that is wrong.
    pub expected: Vec<&'static str>,
    /// What was perhaps meant.
    pub suggestion: Option<String>,
    /// The query's line with that place in it, shortened on both sides where it is long.
    line: String,
    /// Where in the line, in characters.
    column: usize,
}

impl KqlError {
    /// A problem at a byte of `query`.
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

    /// With what could stand there instead.
    #[must_use]
    pub(super) fn expecting(self, expected: Vec<&'static str>) -> Self {
        Self { expected, ..self }
    }

    /// With what was perhaps meant.
    #[must_use]
    pub(super) fn suggesting(self, suggestion: impl Into<String>) -> Self {
        Self { suggestion: Some(suggestion.into()), ..self }
    }

    /// The whole of it for a terminal: the sentence, the query, a caret under the place.
    #[must_use]
    pub fn render(&self) -> String {
        format!("{self}\n  {}\n  {}^", self.line, " ".repeat(self.column))
    }
}

/// One column for one character, as the caret's line counts them.
fn visible(character: char) -> char {
    if character.is_control() { ' ' } else { character }
}

impl fmt::Display for KqlError {
    /// One line.
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

/// `a`, `a or b`, `a, b or c`.
fn listed(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [words @ .., last] => format!("{} or {last}", words.join(", ")),
    }
}
