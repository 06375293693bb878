//! Patterns with `*`, which matches any text, including the empty one.

/// The longest value with wildcards, in characters, unless its only wildcard stands at the end. Elasticsearch makes an
/// automaton of such a value, whose steps grow with the square of its length, and refuses one of more than 10,000.
pub const MAX_PATTERN: usize = 256;

/// A text with at least one wildcard, as the pieces between the wildcards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    pieces: Vec<String>,
}

impl Pattern {
    /// Makes a pattern of these pieces, with a wildcard between each two. Returns `None` when there are fewer than two,
    /// which is a text without a wildcard.
    #[must_use]
    pub fn new(pieces: Vec<String>) -> Option<Self> {
        (pieces.len() >= 2).then_some(Self { pieces })
    }

    /// Returns the pattern `*`.
    #[must_use]
    pub fn any() -> Self {
        Self { pieces: vec![String::new(), String::new()] }
    }

    /// Returns the pieces between the wildcards.
    #[must_use]
    pub fn pieces(&self) -> &[String] {
        &self.pieces
    }

    /// Returns whether the pattern is `*` alone.
    #[must_use]
    pub fn is_any(&self) -> bool {
        matches!(&self.pieces[..], [one, other] if one.is_empty() && other.is_empty())
    }

    /// Returns the text before the only wildcard, if that is at the end.
    #[must_use]
    pub fn prefix(&self) -> Option<&str> {
        match &self.pieces[..] {
            [prefix, end] if end.is_empty() => Some(prefix),
            _ => None,
        }
    }

    /// Returns the pattern with `change` applied to each piece.
    #[must_use]
    pub fn map(&self, change: impl Fn(&str) -> String) -> Self {
        Self { pieces: self.pieces.iter().map(|piece| change(piece)).collect() }
    }

    /// Returns whether `text` matches, in time proportional to both lengths: each piece is searched for once, from the
    /// end of the first match of the piece before.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let [first, middle @ .., last] = &self.pieces[..] else { return false };
        let Some(mut rest) = text.strip_prefix(first.as_str()) else { return false };
        for piece in middle {
            match rest.find(piece.as_str()) {
                Some(at) => rest = &rest[at + piece.len()..],
                None => return false,
            }
        }
        rest.ends_with(last.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(text.split('*').map(str::to_owned).collect()).expect("a wildcard")
    }

    #[test]
    fn a_wildcard_stands_for_any_text_and_for_none() {
        for (wild, text) in [("*", ""), ("*", "x"), ("a*", "a"), ("*a", "ba"), ("a*c", "abc"), ("a*b*c", "abbc")] {
            assert!(pattern(wild).matches(text), "{wild} {text}");
        }
        for (wild, text) in [("a*", "b"), ("a*a", "a"), ("ab*ba", "aba"), ("*x*", "y"), ("a*b*c", "acb")] {
            assert!(!pattern(wild).matches(text), "{wild} {text}");
        }
    }

    #[test]
    fn a_pattern_of_many_wildcards_ends_soon_on_a_text_that_almost_fits() {
        let wild = pattern(&format!("{}b", "a*".repeat(20_000)));
        assert!(!wild.matches(&"a".repeat(1_000_000)));
    }
}
