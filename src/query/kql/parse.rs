//! Parses the text of a query into a [`Node`], after Kibana's grammar.
//!
//! The next characters decide everywhere which rule applies, so nothing is read twice but white space, and parsing
//! takes time in proportion to the length. Groups are parsed by recursion, which [`MAX_GROUPS`] bounds.

use winnow::Parser;
use winnow::ascii::Caseless;
use winnow::combinator::{alt, opt, peek, preceded};
use winnow::error::ParserError;
use winnow::stream::{LocatingSlice, Location, Stream};
use winnow::token::{any, one_of, take_while};

use super::ast::{ByteOffset, Literal, Node, Operator, Value};
use super::error::KqlError;
use super::pattern::{MAX_PATTERN, Pattern};

/// The largest number of groups that may be open at once: `(`, `{` and lists of values.
pub const MAX_GROUPS: usize = 32;

type Input<'i> = LocatingSlice<&'i str>;
type Parsed<T> = Result<T, Failure>;

/// The position at which a rule failed, and the reason.
#[derive(Debug)]
struct Failure {
    at: usize,
    why: Why,
}

#[derive(Debug)]
enum Why {
    /// The grammar allows only these parts at the position.
    Expected(&'static [&'static str]),
    OpenQuote,
    TooManyGroups,
    HalfSurrogate,
    LongPattern,
}

impl<'i> ParserError<Input<'i>> for Failure {
    type Inner = Self;

    fn from_input(input: &Input<'i>) -> Self {
        expected(input, &[])
    }

    fn into_inner(self) -> Result<Self, Self> {
        Ok(self)
    }
}

fn expected(input: &Input<'_>, what: &'static [&'static str]) -> Failure {
    Failure { at: input.current_token_start(), why: Why::Expected(what) }
}

/// Parses a query.
pub(super) fn parse(text: &str) -> Result<Node, KqlError> {
    let mut input = LocatingSlice::new(text);
    query(&mut input).map_err(|failure| failure.explain(text))
}

const TERM: &[&str] = &["a field", "a value", "`(`", "`not`"];
const LISTED: &[&str] = &["a value", "`(`", "`not`"];
const NEGATED: &[&str] = &["a field", "a value", "`(`"];
const NEGATED_LISTED: &[&str] = &["a value", "`(`"];
const AFTER_COLON: &[&str] = &["a value", "a list in `( )`", "a nested group in `{ }`"];
const BOUND: &[&str] = &["a value"];
const END: &[&str] = &["`and`", "`or`", "the end"];
const CLOSE_GROUP: &[&str] = &["`and`", "`or`", "`)`"];
const CLOSE_NESTED: &[&str] = &["`and`", "`or`", "`}`"];

fn query(input: &mut Input<'_>) -> Parsed<Node> {
    spaces(input)?;
    if input.is_empty() {
        return Ok(Node::everything());
    }
    let node = or_query(input, 0)?;
    spaces(input)?;
    if input.is_empty() { Ok(node) } else { Err(expected(input, END)) }
}

/// Parses `a or b or c` into one node, however many parts there are.
fn or_query(input: &mut Input<'_>, groups: usize) -> Parsed<Node> {
    chain(input, "or", Node::Or, |input| chain(input, "and", Node::And, |input| not_query(input, groups)))
}

fn chain(
    input: &mut Input<'_>,
    word: &'static str,
    joined: fn(Vec<Node>) -> Node,
    mut one: impl FnMut(&mut Input<'_>) -> Parsed<Node>,
) -> Parsed<Node> {
    let first = one(input)?;
    let mut nodes = Vec::new();
    // Ends: each round takes at least the word.
    while opt(conjunction(word)).parse_next(input)?.is_some() {
        nodes.push(one(input)?);
    }
    if nodes.is_empty() {
        return Ok(first);
    }
    nodes.insert(0, first);
    Ok(joined(nodes))
}

fn not_query(input: &mut Input<'_>, groups: usize) -> Parsed<Node> {
    if opt(negation).parse_next(input)?.is_some() {
        return Ok(Node::Not(Box::new(sub_query(input, groups, NEGATED)?)));
    }
    sub_query(input, groups, TERM)
}

fn sub_query(input: &mut Input<'_>, groups: usize, wanted: &'static [&'static str]) -> Parsed<Node> {
    if let Some(groups) = open(input, '(', groups)? {
        let node = or_query(input, groups)?;
        close(input, ')', CLOSE_GROUP)?;
        return Ok(node);
    }
    let name = literal(input, wanted)?;
    let after_name = input.checkpoint();
    spaces(input)?;
    if opt(':').parse_next(input)?.is_some() {
        spaces(input)?;
        if let Some(groups) = open(input, '{', groups)? {
            let inside = Box::new(or_query(input, groups)?);
            close(input, '}', CLOSE_NESTED)?;
            return Ok(Node::Nested { path: name, inside });
        }
        return one_or_list(input, groups, &name, AFTER_COLON);
    }
    if let Some(operator) = opt(operator).parse_next(input)? {
        spaces(input)?;
        return Ok(Node::Range { field: name, operator, value: literal(input, BOUND)? });
    }
    // White space belongs to the word that may follow.
    input.reset(&after_name);
    Ok(Node::Is { field: None, value: name })
}

/// Parses what follows `field:`, a value or a list of values, each of which is compared with the field.
fn one_or_list(input: &mut Input<'_>, groups: usize, field: &Literal, wanted: &'static [&'static str]) -> Parsed<Node> {
    if let Some(groups) = open(input, '(', groups)? {
        let node = chain(input, "or", Node::Or, |input| {
            chain(input, "and", Node::And, |input| {
                if opt(negation).parse_next(input)?.is_some() {
                    return Ok(Node::Not(Box::new(one_or_list(input, groups, field, NEGATED_LISTED)?)));
                }
                one_or_list(input, groups, field, LISTED)
            })
        })?;
        close(input, ')', CLOSE_GROUP)?;
        return Ok(node);
    }
    // The name `null` stands for no field.
    let named = (field.value != Value::Null).then(|| field.clone());
    Ok(Node::Is { field: named, value: literal(input, wanted)? })
}

/// Opens a group, if one begins here, and returns how many are open then.
fn open(input: &mut Input<'_>, bracket: char, groups: usize) -> Parsed<Option<usize>> {
    if !input.starts_with(bracket) {
        return Ok(None);
    }
    if groups >= MAX_GROUPS {
        return Err(Failure { at: input.current_token_start(), why: Why::TooManyGroups });
    }
    bracket.void().parse_next(input)?;
    spaces(input)?;
    Ok(Some(groups + 1))
}

fn close(input: &mut Input<'_>, bracket: char, wanted: &'static [&'static str]) -> Parsed<()> {
    spaces(input)?;
    if opt(bracket).parse_next(input)?.is_some() { Ok(()) } else { Err(expected(input, wanted)) }
}

fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n' | '\u{a0}')
}

fn spaces(input: &mut Input<'_>) -> Parsed<()> {
    take_while(0.., is_space).void().parse_next(input)
}

fn conjunction<'i>(word: &'static str) -> impl Parser<Input<'i>, (), Failure> {
    (take_while(1.., is_space), Caseless(word), take_while(1.., is_space)).void()
}

fn negation(input: &mut Input<'_>) -> Parsed<()> {
    (Caseless("not"), take_while(1.., is_space)).void().parse_next(input)
}

fn operator(input: &mut Input<'_>) -> Parsed<Operator> {
    alt((
        "<=".value(Operator::AtMost),
        ">=".value(Operator::AtLeast),
        '<'.value(Operator::Less),
        '>'.value(Operator::Greater),
    ))
    .parse_next(input)
}

fn literal(input: &mut Input<'_>, wanted: &'static [&'static str]) -> Parsed<Literal> {
    let offset = ByteOffset(input.current_token_start());
    let value = if input.starts_with('"') { quoted(input)? } else { unquoted(input, wanted)? };
    Ok(Literal { value, offset })
}

fn quoted(input: &mut Input<'_>) -> Parsed<Value> {
    let at = input.current_token_start();
    any.void().parse_next(input)?;
    let mut text = String::new();
    // Ends: each round takes a character.
    while !input.is_empty() {
        if opt('"').parse_next(input)?.is_some() {
            return Ok(Value::Phrase(text));
        }
        let escaped = match opt(escaped_space).parse_next(input)? {
            Some(character) => Some(character),
            None => escaped_unicode(input)?,
        };
        text.push(match escaped {
            Some(character) => character,
            None => alt((preceded('\\', one_of(['\\', '"'])), any)).parse_next(input)?,
        });
    }
    Err(Failure { at, why: Why::OpenQuote })
}

fn unquoted(input: &mut Input<'_>, wanted: &'static [&'static str]) -> Parsed<Value> {
    let at = input.current_token_start();
    let (mut pieces, mut text, mut empty) = (Vec::new(), String::new(), true);
    // Ends: each round takes a character.
    while !input.is_empty() {
        if opt('*').parse_next(input)?.is_some() {
            pieces.push(std::mem::take(&mut text));
        } else if let Some(character) = unquoted_character(input)? {
            text.push(character);
        } else {
            break;
        }
        empty = false;
    }
    if empty {
        return Err(expected(input, wanted));
    }
    let Some(first) = pieces.first_mut() else { return Ok(word(trimmed(&text))) };
    *first = first.trim_start_matches(is_trimmed).to_owned();
    pieces.push(text.trim_end_matches(is_trimmed).to_owned());
    let characters = pieces.len() - 1 + pieces.iter().map(|piece| piece.chars().count()).sum::<usize>();
    match Pattern::new(pieces) {
        Some(pattern) if characters > MAX_PATTERN && pattern.prefix().is_none() => {
            Err(Failure { at, why: Why::LongPattern })
        }
        pattern => Ok(pattern.map_or(Value::Null, Value::Pattern)),
    }
}

fn word(text: &str) -> Value {
    match text {
        "null" => Value::Null,
        "true" => Value::Flag(true),
        "false" => Value::Flag(false),
        _ => Value::Words(text.to_owned()),
    }
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(is_trimmed)
}

/// Returns whether the ends of words without quotes lose this character, even if escaped: JavaScript's `trim` removes
/// it.
fn is_trimmed(character: char) -> bool {
    (character.is_whitespace() && character != '\u{85}') || character == '\u{feff}'
}

/// Parses the next character of words without quotes; returns `None` where they end.
fn unquoted_character(input: &mut Input<'_>) -> Parsed<Option<char>> {
    if input.starts_with('\\') {
        let special = preceded('\\', one_of(is_special));
        if let Some(character) = opt(alt((escaped_space, special))).parse_next(input)? {
            return Ok(Some(character));
        }
        if let Some(character) = escaped_unicode(input)? {
            return Ok(Some(character));
        }
        // The backslash of an escaped keyword is left out, and the keyword's other letters follow by themselves. An
        // escaped `not` was parsed above as a line's end and `ot`.
        let keyword = (peek(('\\', alt((Caseless("or"), Caseless("and"), Caseless("not"))))), '\\', any);
        return opt(keyword.map(|(_, _, first)| first)).parse_next(input);
    }
    if at_keyword(input) {
        return Ok(None);
    }
    opt(one_of(|character| !is_special(character))).parse_next(input)
}

fn is_special(character: char) -> bool {
    matches!(character, '\\' | '(' | ')' | ':' | '<' | '>' | '"' | '*' | '{' | '}')
}

/// Returns whether a keyword follows, which ends words without quotes. `not` ends them even in the middle of a word.
fn at_keyword(input: &Input<'_>) -> bool {
    fn next(input: &Input<'_>, mut keyword: impl for<'i> FnMut(&mut Input<'i>) -> Parsed<()>) -> bool {
        let mut ahead = *input;
        keyword(&mut ahead).is_ok()
    }
    next(input, |ahead| {
        let word = alt((Caseless("or"), Caseless("and")));
        (one_of(is_space), word, one_of(is_space)).void().parse_next(ahead)
    }) || next(input, |ahead| (Caseless("not"), one_of(is_space)).void().parse_next(ahead))
}

fn escaped_space(input: &mut Input<'_>) -> Parsed<char> {
    alt(("\\t".value('\t'), "\\r".value('\r'), "\\n".value('\n'))).parse_next(input)
}

/// Parses `\u` and four hexadecimal digits, or two of these that are one character together.
fn escaped_unicode(input: &mut Input<'_>) -> Parsed<Option<char>> {
    fn unit(input: &mut Input<'_>) -> Parsed<u16> {
        preceded("\\u", take_while(4..=4, |digit: char| digit.is_ascii_hexdigit()))
            .verify_map(|digits| u16::from_str_radix(digits, 16).ok())
            .parse_next(input)
    }
    let at = input.current_token_start();
    let Some(first) = opt(unit).parse_next(input)? else { return Ok(None) };
    let mut units = vec![first];
    if (0xd800..0xdc00).contains(&first) {
        units.extend(opt(unit).parse_next(input)?);
    }
    match String::from_utf16(&units) {
        Ok(text) => Ok(text.chars().next()),
        Err(_) => Err(Failure { at, why: Why::HalfSurrogate }),
    }
}

impl Failure {
    fn explain(self, query: &str) -> KqlError {
        let rest = query.get(self.at..).unwrap_or_default();
        let wanted = match self.why {
            Why::Expected(wanted) => wanted,
            Why::OpenQuote => return KqlError::at(query, self.at, "this quote is never closed"),
            Why::TooManyGroups => {
                return KqlError::at(query, self.at, format!("more than {MAX_GROUPS} groups are open at once"));
            }
            Why::LongPattern => {
                let problem = format!("a value with wildcards is longer than {MAX_PATTERN} characters");
                return KqlError::at(query, self.at, problem)
                    .suggesting("a single wildcard at the end may follow more");
            }
            Why::HalfSurrogate => {
                let problem = "an escaped character is only half of one";
                return KqlError::at(query, self.at, problem).suggesting("write both halves, \\ud83d\\ude00");
            }
        };
        let found = match rest.chars().next() {
            None => "the query ends too early".to_owned(),
            Some(character) => format!("`{character}` cannot stand here"),
        };
        let error = KqlError::at(query, self.at, found).expecting(wanted.to_vec());
        match advice(rest) {
            Some(advice) => error.suggesting(advice),
            None => error,
        }
    }
}

/// Returns advice where a character or keyword has a meaning of its own.
fn advice(rest: &str) -> Option<String> {
    let first = rest.chars().next()?;
    if rest.get(..3).is_some_and(|word| word.eq_ignore_ascii_case("not")) {
        return Some("`not` is a keyword also at a word's end: put the whole value in quotes".to_owned());
    }
    match first {
        '\\' => Some("for a backslash write `\\\\`".to_owned()),
        _ if is_special(first) => Some(format!("where `{first}` is meant as such, write `\\{first}` or use quotes")),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
