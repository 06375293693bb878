//! What a query says, before it is known which fields there are.

use std::fmt::{self, Write};

use super::pattern::Pattern;

/// Where something begins in the text, in bytes. It does not make two queries different: one that was printed and read
/// again is equal to itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByteOffset(pub usize);

impl PartialEq for ByteOffset {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ByteOffset {}

/// A query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// All of them hold: `a and b`.
    And(Vec<Self>),
    /// One of them holds: `a or b`.
    Or(Vec<Self>),
    /// It does not hold: `not a`.
    Not(Box<Self>),
    /// A field has a value, `state: running`; without a field, some field has it.
    Is {
        /// The field.
        field: Option<Literal>,
        /// The value.
        value: Literal,
    },
    /// A field's value lies to one side of another: `priority >= 5`.
    Range {
        /// The field.
        field: Literal,
        /// To which side.
        operator: Operator,
        /// Of what.
        value: Literal,
    },
    /// One element of a list has it all: `history: { to: running and actor: w-1 }`.
    Nested {
        /// The list's name.
        path: Literal,
        /// What is said of the element.
        inside: Box<Self>,
    },
}

/// A name or a value, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Literal {
    /// What it is.
    pub value: Value,
    /// Where it begins.
    pub offset: ByteOffset,
}

/// What a name or value can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Words, which stand in any order where the field is a text.
    Words(String),
    /// Words in quotes, which stand in this order.
    Phrase(String),
    /// Words with wildcards.
    Pattern(Pattern),
    /// `true` or `false`.
    Flag(bool),
    /// `null`.
    Null,
}

/// A comparison.
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
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Greater => ">",
            Self::AtLeast => ">=",
        }
    }

    /// Whether something that stands so to the bound is asked for.
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
    /// The text of it; `None` for a pattern and for `null`.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Words(text) | Self::Phrase(text) => Some(text),
            Self::Flag(true) => Some("true"),
            Self::Flag(false) => Some("false"),
            Self::Pattern(_) | Self::Null => None,
        }
    }

    /// Whether it is `*` alone.
    #[must_use]
    pub fn is_any(&self) -> bool {
        matches!(self, Self::Pattern(pattern) if pattern.is_any())
    }
}

impl Node {
    /// What an empty query says: `*: *`.
    #[must_use]
    pub fn everything() -> Self {
        let any = || Literal { value: Value::Pattern(Pattern::any()), offset: ByteOffset::default() };
        Self::Is { field: Some(any()), value: any() }
    }

    /// How many levels of `and`, `or`, `not` and `{ }` are inside one another.
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
    /// Writes it so that it reads as the same query again.
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
            // Escaped and then trimmed away: the only way to write nothing without quotes.
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

/// Writes a text without quotes, with all escaped that would end it or mean something else.
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
