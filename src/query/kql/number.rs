//! Numbers in queries.

use std::cmp::Ordering;

/// The longest number, in characters; also the largest exponent.
pub(super) const MAX_DIGITS: usize = 30;

/// A decimal number as it was written, exact: for a comparison with whole numbers it is never rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decimal {
    /// The largest whole number that is not above this number.
    floor: i128,
    /// Whether this number is whole.
    whole: bool,
    /// The nearest floating-point number.
    float: f64,
}

impl Decimal {
    /// Parses a decimal number such as `5`, `-0.5` or `1e3`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (sign, digits) = match text.as_bytes().first()? {
            b'-' => (-1, &text[1..]),
            b'+' => (1, &text[1..]),
            _ => (1, text),
        };
        let (digits, exponent) = match digits.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
            None => (digits, 0),
        };
        let (before, after) = digits.split_once('.').unwrap_or((digits, ""));
        let all = format!("{before}{after}");
        let within = text.len() <= MAX_DIGITS && (-30..=30).contains(&exponent);
        if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) || !within {
            return None;
        }
        let point = i32::try_from(before.len()).ok()? + exponent;
        let cut = usize::try_from(point).unwrap_or(0);
        let (integer, fraction) = all.split_at(cut.min(all.len()));
        let zeros = u32::try_from(cut - integer.len()).ok()?;
        let integer: i128 = if integer.is_empty() { 0 } else { integer.parse().ok()? };
        let integer = integer.checked_mul(10_i128.checked_pow(zeros)?)?;
        let whole = fraction.bytes().all(|byte| byte == b'0');
        let floor = if sign > 0 { integer } else { -integer - i128::from(!whole) };
        Some(Self { floor, whole, float: text.parse().ok()? })
    }

    /// Returns how a whole number compares to this one.
    #[must_use]
    pub fn order_of(&self, number: i64) -> Ordering {
        match i128::from(number).cmp(&self.floor) {
            Ordering::Equal if !self.whole => Ordering::Less,
            ordering => ordering,
        }
    }

    /// Returns how a floating-point number compares to this one. Negative zero is below zero, as in the index.
    #[must_use]
    pub fn order_of_float(&self, number: f64) -> Ordering {
        number.total_cmp(&self.float)
    }

    /// Returns whether this number is less than all of a range of whole numbers, within it, or greater than all of it.
    #[must_use]
    pub fn side_of(&self, least: i64, most: i64) -> Ordering {
        if self.order_of(least).is_gt() {
            Ordering::Less
        } else if self.order_of(most).is_lt() {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decimal_is_compared_exactly() {
        let order = |number: i64, text: &str| Decimal::parse(text).expect("a number").order_of(number);
        assert_eq!(order(5, "5"), Ordering::Equal);
        assert_eq!(order(5, "5.0"), Ordering::Equal);
        assert_eq!(order(5, "0.5e1"), Ordering::Equal);
        assert_eq!(order(500, "5e2"), Ordering::Equal);
        assert_eq!(order(5, "5.5"), Ordering::Less);
        assert_eq!(order(6, "5.5"), Ordering::Greater);
        assert_eq!(order(-5, "-5.5"), Ordering::Greater);
        assert_eq!(order(-6, "-5.5"), Ordering::Less);
        assert_eq!(order(0, "1e-3"), Ordering::Less);
        assert_eq!(order(i64::MAX, "9223372036854775806.5"), Ordering::Greater);
        assert_eq!(order(i64::MAX, "9223372036854775808"), Ordering::Less);
        assert_eq!(order(i64::MIN, "-9223372036854775808"), Ordering::Equal);
    }

    #[test]
    fn what_is_no_number_is_none() {
        for text in ["", "-", ".", "5d", "0x5", "1e", "1e99", "NaN", "inf", "5 ", "١", "--5", "1_000", "1.2.3"] {
            assert_eq!(Decimal::parse(text), None, "{text:?}");
        }
    }
}
