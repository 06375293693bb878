//! Which text may stand in a field of a cron expression.
//!
//! `croner` replaces names wherever they stand and skips empty entries, so that it takes `0 0 MON * *`, `JANFEB` and
//! `1,,2`. So each field is checked here before, and is passed on with numbers alone.

const WEEKDAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const MONTHS: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

/// A weekday comes at most this often in a month.
const MOST_OF_A_WEEKDAY: u8 = 5;

/// A field of a cron expression with a mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} `{entry}`: {problem}")]
pub struct InvalidField {
    /// The name of the field.
    field: &'static str,
    /// The entry of the field's list that is wrong.
    entry: String,
    /// What is wrong with the entry, and what to write instead.
    problem: String,
}

/// What may stand in a field.
#[derive(Debug)]
pub(super) struct Field {
    name: &'static str,
    first: u8,
    last: u8,
    /// The names of the values from `first` on.
    names: &'static [&'static str],
    special: Special,
}

/// The entries of a field that are no sets of numbers, since they depend on the month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Special {
    None,
    /// `L`, the last day of the month.
    LastDay,
    /// `FRI#2` and `FRIL`, the second and the last Friday of the month.
    NthWeekday,
}

const fn plain(name: &'static str, first: u8, last: u8) -> Field {
    Field { name, first, last, names: &[], special: Special::None }
}

/// The fields of an expression, in order.
pub(super) const FIELDS: [Field; 6] = [
    plain("second", 0, 59),
    plain("minute", 0, 59),
    plain("hour", 0, 23),
    Field { special: Special::LastDay, ..plain("day of the month", 1, 31) },
    Field { names: MONTHS, ..plain("month", 1, 12) },
    Field { names: WEEKDAYS, special: Special::NthWeekday, ..plain("day of the week", 0, 7) },
];

impl Field {
    /// Checks the text of the field, in capital letters, and returns it with numbers in the place of names.
    pub(super) fn check(&self, text: &str) -> Result<String, InvalidField> {
        let entries = text.split(',').map(|entry| {
            self.entry(entry).map_err(|problem| InvalidField { field: self.name, entry: entry.to_owned(), problem })
        });
        Ok(entries.collect::<Result<Vec<String>, InvalidField>>()?.join(","))
    }

    fn entry(&self, entry: &str) -> Result<String, String> {
        if entry.is_empty() {
            return Err("an entry of the list is missing; remove a comma".to_owned());
        }
        if let Some((range, step)) = entry.split_once('/') {
            return Ok(format!("{}/{}", self.stepped(range, step)?, self.step(step)?));
        }
        match self.special {
            Special::LastDay if entry == "L" => return Ok(entry.to_owned()),
            Special::NthWeekday => {
                if let Some((day, number)) = entry.split_once('#') {
                    return Ok(format!("{}#{}", self.value(day)?, nth(number)?));
                }
                if let Some(day) = entry.strip_suffix('L') {
                    return Ok(format!("{}L", self.value(day)?));
                }
            }
            Special::None | Special::LastDay => {}
        }
        if entry == "*" || entry.contains('-') { self.range(entry) } else { Ok(self.value(entry)?.to_string()) }
    }

    /// Checks the range that a step goes through.
    fn stepped(&self, range: &str, step: &str) -> Result<String, String> {
        if range == "*" || range.contains('-') {
            return self.range(range);
        }
        let example = if range.is_empty() { format!("*/{step}") } else { format!("{range}-{}/{step}", self.last) };
        Err(format!("a step needs `*` or a range before it, such as `{example}`"))
    }

    fn step(&self, step: &str) -> Result<u8, String> {
        let longest = self.last - self.first;
        let step = number(step).filter(|step| (1..=longest).contains(step));
        step.ok_or_else(|| {
            format!("a step must be from 1 to {longest}; a longer distance is a period of its own, `every_ms`")
        })
    }

    fn range(&self, range: &str) -> Result<String, String> {
        let Some((first, last)) = range.split_once('-') else { return Ok(range.to_owned()) };
        let first = self.value(first)?;
        // A week may end with its Sunday.
        let last = if self.names == WEEKDAYS && last == WEEKDAYS[0] { self.last } else { self.value(last)? };
        if first <= last {
            return Ok(format!("{first}-{last}"));
        }
        Err(format!("the range ends before it begins; write it as two, `{first}-{},{}-{last}`", self.last, self.first))
    }

    fn value(&self, text: &str) -> Result<u8, String> {
        if let Some(index) = self.names.iter().position(|name| *name == text) {
            return u8::try_from(index).map(|index| self.first + index).map_err(|error| error.to_string());
        }
        let value = number(text).filter(|value| (self.first..=self.last).contains(value));
        value.ok_or_else(|| self.not_a_value(text))
    }

    fn not_a_value(&self, text: &str) -> String {
        let belongs = FIELDS.iter().find(|field| field.names.contains(&text));
        match (text, belongs) {
            ("?", _) => "write `*` for any value".to_owned(),
            (_, Some(field)) => format!("belongs into the field of the {}", field.name),
            _ => {
                let names = match self.names {
                    [first, .., last] => format!(", or a name from {first} to {last}"),
                    _ => String::new(),
                };
                format!("must be from {} to {}{names}", self.first, self.last)
            }
        }
    }
}

fn nth(text: &str) -> Result<u8, String> {
    let nth = number(text).filter(|nth| (1..=MOST_OF_A_WEEKDAY).contains(nth));
    nth.ok_or_else(|| format!("the number after `#` must be from 1 to {MOST_OF_A_WEEKDAY}"))
}

/// Parses a number of one or two digits.
fn number(text: &str) -> Option<u8> {
    let has_form = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if has_form { text.parse().ok() } else { None }
}
