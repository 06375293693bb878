//! Times and durations as people read them.

use std::time::Duration;

use super::Timestamp;

/// Writes how far a time is from now, in one unit: `3m ago`, `in 2h`.
#[must_use]
pub fn relative(at: Timestamp, now: Timestamp) -> String {
    if at > now { format!("in {}", distance(at.since(now))) } else { format!("{} ago", distance(now.since(at))) }
}

/// Writes a distance in time in the largest unit of which there are at least two.
fn distance(distance: Duration) -> String {
    let seconds = (distance.as_millis() + 500) / 1000;
    let (minutes, hours, days) = ((seconds + 30) / 60, (seconds + 1800) / 3600, (seconds + 43_200) / 86_400);
    match (seconds, minutes, hours, days) {
        (..120, ..) => format!("{seconds}s"),
        (_, ..120, ..) => format!("{minutes}m"),
        (_, _, ..48, _) => format!("{hours}h"),
        (.., ..730) => format!("{days}d"),
        _ => format!("{}y", days / 365),
    }
}

/// Writes a duration, with at most three significant digits.
#[must_use]
pub fn in_words(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1000.0)
    } else if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else if seconds < 3600.0 {
        format!("{}m {:02}s", duration.as_secs() / 60, duration.as_secs() % 60)
    } else if seconds < 48.0 * 3600.0 {
        format!("{}h {:02}m", duration.as_secs() / 3600, duration.as_secs() / 60 % 60)
    } else {
        format!("{}d {:02}h", duration.as_secs() / 86400, duration.as_secs() / 3600 % 24)
    }
}
