//! Decimal numbers of any length, compared exactly: the number of a build has more digits than a floating-point number.

use std::cmp::Ordering;

/// A decimal number such as `43`, `-0.5` or `20261124.1`, within the text that it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number<'a> {
    is_negative: bool,
    /// The digits before the point, without zeros at their beginning.
    whole: &'a str,
    /// The digits after the point, without zeros at their end.
    fraction: &'a str,
}

impl<'a> Number<'a> {
    /// Reads a number: digits, with a `-` before them or a point among them. Returns `None` for any other text.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let (whole, fraction) = match digits.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (digits, ""),
        };
        let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !are_digits(whole) || !are_digits(fraction) {
            return None;
        }
        let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
        let is_zero = whole.is_empty() && fraction.is_empty();
        Some(Self { is_negative: text.starts_with('-') && !is_zero, whole, fraction })
    }

    /// Returns the shortest text of the number.
    pub(super) fn shortest(self) -> String {
        let sign = if self.is_negative { "-" } else { "" };
        let whole = if self.whole.is_empty() { "0" } else { self.whole };
        let point = if self.fraction.is_empty() { "" } else { "." };
        format!("{sign}{whole}{point}{}", self.fraction)
    }
}

impl Ord for Number<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        // Of whole numbers without zeros before them the longer is the larger; fractions are compared digit by digit.
        let size = (self.whole.len(), self.whole, self.fraction).cmp(&(other.whole.len(), other.whole, other.fraction));
        match (self.is_negative, other.is_negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => size,
            (true, true) => size.reverse(),
        }
    }
}

impl PartialOrd for Number<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_exactly_whatever_their_length() {
        let order = |a: &str, b: &str| Number::parse(a).expect("a number").cmp(&Number::parse(b).expect("a number"));
        for (less, more) in [
            ("9", "10"),
            ("-10", "-9"),
            ("-1", "0"),
            ("1.45", "1.5"),
            ("1", "1.0001"),
            ("-1.5", "-1.45"),
            ("20261124110052001", "20261124110052002"),
            ("0.1", "1"),
        ] {
            assert_eq!((order(less, more), order(more, less)), (Ordering::Less, Ordering::Greater), "{less} {more}");
        }
        for (one, same) in [("43", "043.0"), ("-0", "0.00"), ("1.50", "1.5")] {
            assert_eq!(order(one, same), Ordering::Equal, "{one} {same}");
        }
    }

    #[test]
    fn the_shortest_text_is_the_same_number() {
        for (text, shortest) in [("043.0", "43"), ("-0.0", "0"), ("000", "0"), ("-00.50", "-0.5"), ("10", "10")] {
            assert_eq!(Number::parse(text).map(Number::shortest).as_deref(), Some(shortest), "{text}");
        }
    }

    #[test]
    fn what_is_no_decimal_number_is_none() {
        for text in ["", "-", ".", "5.", ".5", "+5", "1e3", "0x5", "NaN", " 5", "5 ", "1.2.3", "1_000", "\u{661}"] {
            assert_eq!(Number::parse(text), None, "{text:?}");
        }
    }
}
