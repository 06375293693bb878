//! Parsing and formatting of durations.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

/// Parses `500ms`, `30s`, `5m`, `2h`, `1d`; a bare number is seconds.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| wrong())
}

/// A duration as flags and the settings file take it.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct DurationSetting(pub(super) Duration);

impl FromStr for DurationSetting {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map(Self)
    }
}

impl TryFrom<String> for DurationSetting {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

fn wrong() -> String {
    "a duration is a number and a unit, such as 500ms, 30s, 5m, 2h or 1d".to_owned()
}

pub(super) use crate::clock::in_words as show;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_unit_make_a_duration() {
        for (text, millis) in [("500ms", 500), ("30s", 30_000), ("1.5m", 90_000), ("2h", 7_200_000), ("3", 3_000)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "s", "10 parsecs", "-1s", "1.2.3s", "99999999999999999999d"] {
            assert!(parse(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn people_see_no_needless_digits() {
        let shown = [40, 1_234, 83_000, 5_000_000, 266_400_000].map(|millis| show(Duration::from_millis(millis)));
        assert_eq!(shown, ["40 ms", "1.2 s", "1m 23s", "1h 23m", "3d 02h"]);
    }
}
