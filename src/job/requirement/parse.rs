//! Reads a requirement. The next characters decide which rule applies, so that nothing is read twice.

use std::fmt;
use std::str::FromStr;

use winnow::Parser;
use winnow::ascii::Caseless;
use winnow::combinator::{alt, opt, preceded};
use winnow::error::ParserError;
use winnow::stream::{LocatingSlice, Location, Stream};
use winnow::token::{any, one_of, take_while};

use super::definition::{Comparison, Requirement, Test};
use super::number::Number;
use super::offered::{MAX_OFFERED_NAME, MAX_OFFERED_VALUE, is_of_name, is_of_plain_value, is_offered_value};

/// The longest requirement, in bytes of its text and of its normal form.
pub const MAX_REQUIREMENT_BYTES: usize = 256;

type Input<'i> = LocatingSlice<&'i str>;
type Parsed<T> = Result<T, Failure>;

/// Why a text is not a requirement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequirement {
    /// The text or its normal form is longer than [`MAX_REQUIREMENT_BYTES`].
    #[error("must have at most {MAX_REQUIREMENT_BYTES} bytes, not {bytes}")]
    TooLong {
        /// The length of the text, or that of its normal form, in bytes.
        bytes: usize,
    },
    /// The text is not of the form of a requirement.
    #[error("{what} is expected {place}")]
    Form {
        /// What would have to stand at the place.
        what: &'static str,
        /// Where that would have to stand.
        place: Place,
    },
}

/// A place in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The text breaks off.
    End,
    /// Something else stands there.
    Before(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("at the end"),
            Self::Before(rest) => write!(f, "in the place of {rest:?}"),
        }
    }
}

/// The position at which a rule failed, and what would have to stand there.
#[derive(Debug)]
struct Failure {
    at: usize,
    what: &'static str,
}

impl<'i> ParserError<Input<'i>> for Failure {
    type Inner = Self;

    fn from_input(input: &Input<'i>) -> Self {
        expected(input, "")
    }

    fn into_inner(self) -> Result<Self, Self> {
        Ok(self)
    }
}

fn expected(input: &Input<'_>, what: &'static str) -> Failure {
    Failure { at: input.current_token_start(), what }
}

const LABEL: &str = "a label's name (1 to 64 letters, digits, `_`, `-` or `.`)";
const TEST: &str = "`=`, `!=`, `in (…)`, `not in (…)`, `>=`, `>`, `<=` or `<`";
const VALUE: &str = "a value (at most 128 letters, digits, `_`, `-`, `.`, `/` or `:`, or other text in double quotes)";
const QUOTED: &str = "a text of at most 128 bytes without control characters, with a double quote after it,";
const NUMBER: &str = "a decimal number";
const OPEN: &str = "`(` with values after it";
const CLOSE: &str = "`,` or `)`";
const IN: &str = "`in (…)`";
const END: &str = "nothing more";

impl FromStr for Requirement {
    type Err = InvalidRequirement;

    fn from_str(text: &str) -> Result<Self, InvalidRequirement> {
        let short = |bytes: usize| match bytes {
            0..=MAX_REQUIREMENT_BYTES => Ok(()),
            bytes => Err(InvalidRequirement::TooLong { bytes }),
        };
        short(text.len())?;
        let parsed = requirement(&mut LocatingSlice::new(text)).map_err(|Failure { at, what }| {
            let rest = text.get(at..).unwrap_or_default();
            let place = if rest.is_empty() { Place::End } else { Place::Before(rest.to_owned()) };
            InvalidRequirement::Form { what, place }
        })?;
        // The normal form has spaces that the text may lack, and has to be read again.
        short(parsed.to_string().len())?;
        Ok(parsed)
    }
}

fn requirement(input: &mut Input<'_>) -> Parsed<Requirement> {
    spaces(input)?;
    let is_negated = opt('!').parse_next(input)?.is_some();
    spaces(input)?;
    let label = name(input)?;
    spaces(input)?;
    let test = match is_negated {
        true => Test::NotOffered,
        false if input.is_empty() => Test::Offered,
        false => test(input)?,
    };
    spaces(input)?;
    if input.is_empty() { Ok(Requirement { label, test }) } else { Err(expected(input, END)) }
}

fn test(input: &mut Input<'_>) -> Parsed<Test> {
    if let Some(comparison) = opt(comparison).parse_next(input)? {
        spaces(input)?;
        return Ok(Test::Compares(comparison, number(input)?));
    }
    for (sign, test) in [("=", Test::Is as fn(String) -> Test), ("!=", Test::IsNot)] {
        if opt(sign).parse_next(input)?.is_some() {
            spaces(input)?;
            return value(input).map(test);
        }
    }
    if opt(Caseless("not")).parse_next(input)?.is_some() {
        spaces(input)?;
        return match opt(Caseless("in")).parse_next(input)? {
            Some(_) => Ok(Test::NotIn(values(input)?)),
            None => Err(expected(input, IN)),
        };
    }
    match opt(Caseless("in")).parse_next(input)? {
        Some(_) => Ok(Test::In(values(input)?)),
        None => Err(expected(input, TEST)),
    }
}

fn comparison(input: &mut Input<'_>) -> Parsed<Comparison> {
    alt((
        "<=".value(Comparison::AtMost),
        ">=".value(Comparison::AtLeast),
        '<'.value(Comparison::Below),
        '>'.value(Comparison::Above),
    ))
    .parse_next(input)
}

/// Parses values in brackets, of which those that stand twice are kept once.
fn values(input: &mut Input<'_>) -> Parsed<Vec<String>> {
    spaces(input)?;
    if opt('(').parse_next(input)?.is_none() {
        return Err(expected(input, OPEN));
    }
    let mut values = Vec::new();
    // Ends: each round takes a character, of which a requirement has few.
    loop {
        spaces(input)?;
        let value = value(input)?;
        if !values.contains(&value) {
            values.push(value);
        }
        spaces(input)?;
        if opt(')').parse_next(input)?.is_some() {
            return Ok(values);
        }
        if opt(',').parse_next(input)?.is_none() {
            return Err(expected(input, CLOSE));
        }
    }
}

fn spaces(input: &mut Input<'_>) -> Parsed<()> {
    take_while(0.., is_space).void().parse_next(input)
}

const fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n')
}

fn name(input: &mut Input<'_>) -> Parsed<String> {
    letters(input, is_of_name, MAX_OFFERED_NAME, LABEL).map(str::to_owned)
}

fn number(input: &mut Input<'_>) -> Parsed<String> {
    let start = input.checkpoint();
    let text = letters(input, is_of_plain_value, MAX_OFFERED_VALUE, NUMBER)?;
    match Number::parse(text) {
        Some(number) => Ok(number.shortest()),
        None => {
            input.reset(&start);
            Err(expected(input, NUMBER))
        }
    }
}

fn value(input: &mut Input<'_>) -> Parsed<String> {
    match input.starts_with('"') {
        true => quoted(input),
        false => letters(input, is_of_plain_value, MAX_OFFERED_VALUE, VALUE).map(str::to_owned),
    }
}

/// Parses 1 to `most` of these characters, each of which is one byte.
fn letters<'i>(input: &mut Input<'i>, is_one: fn(char) -> bool, most: usize, what: &'static str) -> Parsed<&'i str> {
    let failure = expected(input, what);
    let text: &str = take_while(0.., is_one).parse_next(input)?;
    if (1..=most).contains(&text.len()) { Ok(text) } else { Err(failure) }
}

fn quoted(input: &mut Input<'_>) -> Parsed<String> {
    let failure = expected(input, QUOTED);
    any.void().parse_next(input)?;
    let mut text = String::new();
    // Ends: each round takes a character.
    while !input.is_empty() {
        if opt('"').parse_next(input)?.is_some() {
            return if is_offered_value(&text) { Ok(text) } else { Err(failure) };
        }
        text.push(alt((preceded('\\', one_of(['\\', '"'])), any)).parse_next(input)?);
    }
    Err(failure)
}
