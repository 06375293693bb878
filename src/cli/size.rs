//! Parsing of amounts of memory.

use std::str::FromStr;

use serde::Deserialize;

/// An amount of memory in bytes, as flags and the settings file take it: `512MiB`, `8GiB`; a bare number is bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct SizeSetting(pub(super) u64);

impl FromStr for SizeSetting {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let scale: u64 = match unit.trim() {
            "" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        number.checked_mul(scale).map(Self).ok_or_else(wrong)
    }
}

impl TryFrom<String> for SizeSetting {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

fn wrong() -> String {
    "a size is a whole number and a unit, such as 512MiB or 8GiB".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_and_a_unit_make_a_size() {
        for (text, bytes) in [("7", 7), ("2KiB", 2_048), ("512 MiB", 512 << 20), ("8GiB", 8 << 30), ("1TiB", 1 << 40)] {
            assert_eq!(text.parse(), Ok(SizeSetting(bytes)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "MiB", "8GB", "-1MiB", "1.5GiB", "99999999999999999999", "99999999999TiB"] {
            assert!(text.parse::<SizeSetting>().is_err(), "{text:?} was taken");
        }
    }
}
