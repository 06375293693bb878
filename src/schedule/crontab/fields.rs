//! Forms of fields that crontabs have and expressions of schedules have not: ranges of which one value is drawn, and
//! steps that are longer than their field.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The fields of a crontab's expression: the name, the least and the greatest value.
const FIELDS: [(&str, u8, u8); 5] =
    [("minute", 0, 59), ("hour", 0, 23), ("day of the month", 1, 31), ("month", 1, 12), ("day of the week", 0, 6)];

/// Expands the fields of an expression: `6~18` to one of these values, which follows from `seed`, so that the same line
/// is the same schedule each time; and a step over the whole field that is longer than the field to the field's
/// least value, as cron reads it. Returns what was expanded, for people.
pub(super) fn expand(fields: &mut [String], seed: &str) -> Vec<String> {
    let mut notes = Vec::new();
    // A day has to be in both fields of days where one of them begins with `*`, so that the `*` cannot go then.
    let is_restricted = [2, 4].map(|day| fields.get(day).is_some_and(|field| field != "*"));
    for (index, (field, (name, least, greatest))) in fields.iter_mut().zip(FIELDS).enumerate() {
        let expanded = field.split(',').enumerate().map(|(place, entry)| {
            let at = (index * 100 + place) as u64;
            let value = draw(entry, least, greatest, || xxh3_64_with_seed(seed.as_bytes(), at));
            let may_go = !matches!((index, is_restricted), (2 | 4, [true, true]));
            value.or_else(|| long_step(entry, least, greatest).filter(|_| may_go)).unwrap_or_else(|| entry.to_owned())
        });
        let expanded = expanded.collect::<Vec<String>>().join(",");
        if expanded != *field {
            notes.push(format!("{name} `{field}` is {expanded}"));
            *field = expanded;
        }
    }
    notes
}

/// Returns the value that is drawn of a range with `~`, either end of which may be left out.
fn draw(entry: &str, least: u8, greatest: u8, random: impl FnOnce() -> u64) -> Option<String> {
    let (first, last) = entry.split_once('~')?;
    let end = |text: &str, default| if text.is_empty() { Some(default) } else { text.parse().ok() };
    let (first, last) = (end(first, least)?, end(last, greatest)?);
    let is_range = least <= first && first <= last && last <= greatest;
    is_range.then(|| (u64::from(first) + random() % u64::from(last - first + 1)).to_string())
}

/// Returns the only value that a step over the whole field leaves.
fn long_step(entry: &str, least: u8, greatest: u8) -> Option<String> {
    let step: u32 = entry.strip_prefix("*/")?.parse().ok()?;
    (step > u32::from(greatest - least)).then(|| least.to_string())
}
