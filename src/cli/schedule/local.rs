//! Times as people in a time zone read them.

use chrono::DateTime;
use chrono_tz::Tz;

use crate::clock::Timestamp;

/// Formats a time as the clock of the zone shows it, with the day of the week and the offset.
pub(super) fn local(at: Timestamp, zone: Tz) -> String {
    let local = DateTime::from_timestamp_millis(at.as_millis()).unwrap_or_default().with_timezone(&zone);
    local.format("%a %Y-%m-%d %H:%M:%S%.f %:z").to_string()
}
