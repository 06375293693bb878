//! Periods and excluded days as people write them, and as they are stored.

use std::ops::RangeInclusive;

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::cron::Cron;
use super::exclude::{ExcludedDays, MAX_EXCLUDED, parse_day};
use super::period::{EVERY_MS, Every, Period, Repeat};
use super::zone::parse_zone;
use crate::clock::Timestamp;

/// When a schedule fires: exactly one of `cron`, `every_ms` and `at`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Period, example = json!({"cron": "*/5 8-18 * * MON-FRI", "time_zone": "Europe/Berlin"}))]
pub struct PeriodText {
    /// The times that a cron expression names. It has 5 fields (minute, hour, day of the month, month, day of the
    /// week), or 6 with the second first, or is one of `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`,
    /// `@yearly` and `@annually`. At most 1,024 bytes.
    #[schema(max_length = 1024)]
    pub cron: Option<String>,
    /// The time zone of the expression and of excluded days, by its name in the IANA database; `UTC` by default.
    #[schema(example = "Europe/Berlin")]
    pub time_zone: Option<String>,
    /// The time between two fire times, in milliseconds: from a second to a year.
    #[schema(minimum = 1000, maximum = 31_622_400_000_u64)]
    pub every_ms: Option<u64>,
    /// A moment from which `every_ms` counts, forwards and backwards; 1970-01-01T00:00:00Z by default.
    #[schema(format = DateTime)]
    pub anchor: Option<String>,
    /// The only fire time.
    #[schema(format = DateTime)]
    pub at: Option<String>,
}

/// Days without fire times, in the time zone of the period: either `date`, or `from` and `to`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ExcludedDates, example = json!({"from": "2030-12-24", "to": "2031-01-01"}))]
pub struct DatesText {
    /// A day.
    #[schema(format = Date, pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    pub date: Option<String>,
    /// The first day of a range.
    #[schema(format = Date, pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    pub from: Option<String>,
    /// The last day of the range.
    #[schema(format = Date, pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    pub to: Option<String>,
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Fault {
    /// The field, such as `period.cron`.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

/// Notes what is wrong with a field.
fn fault(faults: &mut Vec<Fault>, field: impl Into<String>, message: impl Into<String>) {
    faults.push(Fault { field: field.into(), message: message.into() });
}

impl PeriodText {
    /// Parses the period; `None` when something is wrong, which is added to `faults`.
    pub fn parse(&self, faults: &mut Vec<Fault>) -> Option<Period> {
        let zone = self.time_zone.as_deref().map_or(Ok(chrono_tz::UTC), parse_zone);
        let zone = zone.map_err(|error| fault(faults, "period.time_zone", error.to_string())).ok();
        let anchor = time(faults, "period.anchor", self.anchor.as_deref());
        if self.anchor.is_some() && self.every_ms.is_none() {
            fault(faults, "period.anchor", "says what `every_ms` counts from, and there is none");
        }
        let repeat = match (&self.cron, self.every_ms, &self.at) {
            (Some(cron), None, None) => {
                let cron = cron.parse::<Cron>().map_err(|error| fault(faults, "period.cron", error.to_string()));
                cron.ok().map(Repeat::Cron)
            }
            (None, Some(millis), None) => {
                let every = Every::new(millis, anchor.unwrap_or_default());
                if every.is_none() {
                    let (least, most) = (EVERY_MS.start(), EVERY_MS.end());
                    fault(faults, "period.every_ms", format!("must be from {least} to {most}, not {millis}"));
                }
                every.map(Repeat::Every)
            }
            (None, None, Some(at)) => time(faults, "period.at", Some(at)).map(Repeat::Once),
            _ => {
                fault(faults, "period", "must have exactly one of `cron`, `every_ms` and `at`");
                None
            }
        };
        repeat.zip(zone).map(|(repeat, zone)| Period { repeat, zone })
    }
}

impl DatesText {
    /// Parses the days of a schedule; what is wrong is added to `faults`.
    pub fn parse_all(texts: &[Self], faults: &mut Vec<Fault>) -> ExcludedDays {
        if texts.len() > MAX_EXCLUDED {
            fault(faults, "exclude", format!("must have at most {MAX_EXCLUDED} entries, not {}", texts.len()));
        }
        let texts = texts.iter().take(MAX_EXCLUDED).enumerate();
        ExcludedDays::new(texts.filter_map(|(index, dates)| dates.parse(&format!("exclude[{index}]"), faults)))
    }

    fn parse(&self, field: &str, faults: &mut Vec<Fault>) -> Option<RangeInclusive<NaiveDate>> {
        let mut day = |name: &str, text: &str| {
            parse_day(text).map_err(|message| fault(faults, format!("{field}.{name}"), message)).ok()
        };
        match (&self.date, &self.from, &self.to) {
            (Some(date), None, None) => day("date", date).map(|day| day..=day),
            (None, Some(from), Some(to)) => {
                let (from, to) = day("from", from).zip(day("to", to))?;
                if to < from {
                    fault(faults, format!("{field}.to"), "must not be before `from`");
                }
                Some(from..=to)
            }
            _ => {
                fault(faults, field, "must have either `date`, or `from` and `to`");
                None
            }
        }
    }
}

fn time(faults: &mut Vec<Fault>, field: &str, text: Option<&str>) -> Option<Timestamp> {
    text.and_then(|text| Timestamp::parse_rfc3339(text).map_err(|message| fault(faults, field, message)).ok())
}
