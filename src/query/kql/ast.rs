//! The syntax tree of a query, before its names are matched with fields.

use std::fmt::{self, Write};

use super::pattern::Pattern;

/// A position in the text of a query, in bytes from its start. All positions are equal to each other, so that a query
/// that is printed and parsed again is equal to the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByteOffset(pub usize);

impl PartialEq for ByteOffset {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ByteOffset {}

/// A query or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Every part matches: `a and b`.
    And(Vec<Self>),
    /// At least one part matches: `a or b`.
    Or(Vec<Self>),
    /// The part does not match: `not a`.
    Not(Box<Self>),
    /// A field has a value: `state: running`. Without a field, any of the default fields has it.
    Is {
        /// The name of the field, if one is given.
        field: Option<Literal>,
        /// The value that the field must have.
        value: Literal,
    },
    /// A field's value is below or above a bound: `priority >= 5`.
    Range {
        /// The name of the field.
        field: Literal,
        /// The comparison of the field's value with the bound.
        operator: Operator,
        /// The bound that the field's value is compared with.
        value: Literal,
    },
    /// One entry of a list matches: `history: { to: running and actor: w-1 }`.
    Nested {
        /// The name of the list.
        path: Literal,
        /// The query that the entry must match.
        inside: Box<Self>,
    },
}

/// A name or a value, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Literal {
    /// The name or value.
    pub value: Value,
    /// The position at which the name or value begins.
    pub offset: ByteOffset,
}

/// The content of a name or a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Words without quotes, one of which is enough where the field is a text.
    Words(String),
    /// Words in quotes, which must follow each other in this order where the field is a text.
    Phrase(String),
    /// Words with wildcards.
    Pattern(Pattern),
    /// The word `true` or `false` without quotes.
    Flag(bool),
    /// The word `null` without quotes.
    Null,
}

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    Greater,
    /// `>=`
    AtLeast,
}

impl Operator {
    /// Returns the operator as queries write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Greater => ">",
            Self::AtLeast => ">=",
        }
    }

    /// Returns whether a value that compares to the bound with this ordering satisfies the comparison.
    #[must_use]
    pub fn admits(self, ordering: std::cmp::Ordering) -> bool {
        match self {
            Self::Less => ordering.is_lt(),
            Self::AtMost => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::AtLeast => ordering.is_ge(),
        }
    }
}

impl Value {
    /// Returns the text of the value; `None` for a pattern and for `null`.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Words(text) | Self::Phrase(text) => Some(text),
            Self::Flag(true) => Some("true"),
            Self::Flag(false) => Some("false"),
            Self::Pattern(_) | Self::Null => None,
        }
    }

    /// Returns whether the value is `*` alone.
    #[must_use]
    pub fn is_any(&self) -> bool {
        matches!(self, Self::Pattern(pattern) if pattern.is_any())
    }
}

impl Node {
    /// Returns the tree of an empty query: `*: *`.
    #[must_use]
    pub fn everything() -> Self {
        let any = || Literal { value: Value::Pattern(Pattern::any()), offset: ByteOffset::default() };
        Self::Is { field: Some(any()), value: any() }
    }

    /// Returns the depth of the nesting of `and`, `or`, `not` and `{ }`.
    #[must_use]
    pub fn depth(&self) -> usize {
        match self {
            Self::And(nodes) | Self::Or(nodes) => 1 + nodes.iter().map(Self::depth).max().unwrap_or(0),
            Self::Not(node) | Self::Nested { inside: node, .. } => 1 + node.depth(),
            Self::Is { .. } | Self::Range { .. } => 0,
        }
    }
}

impl fmt::Display for Node {
    /// Writes the query so that parsing it gives an equal one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::And(nodes) => joined(f, nodes, " and "),
            Self::Or(nodes) => joined(f, nodes, " or "),
            Self::Not(node) => {
                f.write_str("not ")?;
                node.grouped(f, matches!(**node, Self::And(_) | Self::Or(_) | Self::Not(_)))
            }
            Self::Is { field: None, value } => write!(f, "{value}"),
            Self::Is { field: Some(field), value } => write!(f, "{field}: {value}"),
            Self::Range { field, operator, value } => write!(f, "{field} {} {value}", operator.as_str()),
            Self::Nested { path, inside } => write!(f, "{path}: {{ {inside} }}"),
        }
    }
}

impl Node {
    fn grouped(&self, f: &mut fmt::Formatter<'_>, group: bool) -> fmt::Result {
        if group { write!(f, "({self})") } else { write!(f, "{self}") }
    }
}

fn joined(f: &mut fmt::Formatter<'_>, nodes: &[Node], between: &str) -> fmt::Result {
    for (number, node) in nodes.iter().enumerate() {
        if number > 0 {
            f.write_str(between)?;
        }
        node.grouped(f, matches!(node, Node::And(_) | Node::Or(_)))?;
    }
    Ok(())
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            // An escaped tab is trimmed away again: the only way to write an empty text without quotes.
            Value::Words(text) if text.is_empty() => f.write_str("\\t"),
            Value::Words(text) => escaped(f, text),
            Value::Phrase(text) => {
                f.write_char('"')?;
                for character in text.chars() {
                    if matches!(character, '\\' | '"') {
                        f.write_char('\\')?;
                    }
                    f.write_char(character)?;
                }
                f.write_char('"')
            }
            Value::Pattern(pattern) => {
                for (number, piece) in pattern.pieces().iter().enumerate() {
                    if number > 0 {
                        f.write_char('*')?;
                    }
                    escaped(f, piece)?;
                }
                Ok(())
            }
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Null => f.write_str("null"),
        }
    }
}

/// Writes a text without quotes, and escapes everything that would end it or mean something else.
fn escaped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let starts = |rest: &str, word: &str| rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    for (at, character) in text.char_indices() {
        let after = &text[at + character.len_utf8()..];
        match character {
            '\\' | '(' | ')' | ':' | '<' | '>' | '"' | '*' | '{' | '}' => write!(f, "\\{character}")?,
            '\t' => f.write_str("\\t")?,
            '\r' => f.write_str("\\r")?,
            '\n' => f.write_str("\\n")?,
            ' ' | '\u{a0}' if starts(after, "or") || starts(after, "and") => unicode(f, character)?,
            // `not` is a keyword wherever white space follows it, also at the end of a word; and `\n` is a line's end.
            'n' | 'N' if starts(after, "ot") && matches!(after[2..].chars().next(), None | Some(' ' | '\u{a0}')) => {
                unicode(f, character)?;
            }
            _ => f.write_char(character)?,
        }
    }
    Ok(())
}

fn unicode(f: &mut fmt::Formatter<'_>, character: char) -> fmt::Result {
    write!(f, "\\u{:04x}", u32::from(character))
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;

    #[test]
    fn a_comparison_admits_its_bound_where_it_says_so() {
        let admitted = |operator: Operator| {
            [Ordering::Less, Ordering::Equal, Ordering::Greater].map(|ordering| operator.admits(ordering))
        };
        assert_eq!(admitted(Operator::Less), [true, false, false]);
        assert_eq!(admitted(Operator::AtMost), [true, true, false]);
        assert_eq!(admitted(Operator::Greater), [false, false, true]);
        assert_eq!(admitted(Operator::AtLeast), [false, true, true]);
    }
}
