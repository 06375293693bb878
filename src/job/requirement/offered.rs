//! The labels that a worker offers: their names, their values, and how many there may be.

use std::collections::BTreeMap;

/// The labels that a worker offers, by name.
pub type Offers = BTreeMap<String, String>;

/// The most labels that a worker offers.
pub const MAX_OFFERED: usize = 64;
/// The longest name of a label that a worker offers, in bytes.
pub const MAX_OFFERED_NAME: usize = 64;
/// The longest value of a label that a worker offers, and that a requirement compares it with, in bytes.
pub const MAX_OFFERED_VALUE: usize = 128;
/// A regular expression (ECMA-262) that matches what [`is_offered_name`] accepts, whatever its length.
pub const OFFERED_NAME_PATTERN: &str = "^[a-zA-Z0-9_.-]+$";

/// Returns whether a label that a worker offers may have this name: 1 to 64 letters (a-z, A-Z), digits, `_`, `-` or
/// `.`.
#[must_use]
pub fn is_offered_name(name: &str) -> bool {
    (1..=MAX_OFFERED_NAME).contains(&name.len()) && name.chars().all(is_of_name)
}

/// Returns whether a label that a worker offers may have this value: at most 128 bytes without control characters.
#[must_use]
pub fn is_offered_value(value: &str) -> bool {
    value.len() <= MAX_OFFERED_VALUE && !value.chars().any(char::is_control)
}

/// Returns whether the name of a label may have this character.
pub(super) const fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.')
}

/// Returns whether a value may have this character without quotes.
pub(super) const fn is_of_plain_value(character: char) -> bool {
    is_of_name(character) || matches!(character, '/' | ':')
}
