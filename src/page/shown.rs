//! How times, durations, numbers and ids are written on a page.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use askama::filters::HtmlSafe;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::form_urlencoded;

use crate::clock::{Timestamp, in_words, relative};
use crate::job::JobState;
use crate::wire::Throughput;

/// A time, shown by its distance from now; the script keeps that up to date, and shows the exact one where asked to.
pub(super) struct Moment {
    at: Timestamp,
    now: Timestamp,
}

/// Shows a time as seen from `now`.
pub(super) fn moment(at: &Timestamp, now: &Timestamp) -> Moment {
    Moment { at: *at, now: *now }
}

impl Display for Moment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let exact = self.at.to_rfc3339();
        write!(f, "<time datetime=\"{exact}\" title=\"{exact}\">{}</time>", relative(self.at, self.now))
    }
}

/// It writes digits and letters alone.
impl HtmlSafe for Moment {}

/// Writes how long it is from one time to another.
pub(super) fn between(from: &Timestamp, to: &Timestamp) -> String {
    in_words(to.since(*from))
}

/// Writes a duration in milliseconds.
pub(super) fn millis(millis: &u64) -> String {
    in_words(Duration::from_millis(*millis))
}

/// Writes a duration in fractions of milliseconds; a dash where there is none.
pub(super) fn fraction(millis: &Option<f64>) -> String {
    millis.map_or_else(|| "–".to_owned(), |millis| in_words(Duration::from_secs_f64(millis.max(0.0) / 1000.0)))
}

/// Writes a number with a thin space between its thousands.
pub(super) fn number(number: impl Borrow<u64>) -> String {
    let digits = number.borrow().to_string();
    let mut written = String::with_capacity(digits.len() * 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            written.push('\u{202f}');
        }
        written.push(digit);
    }
    written
}

/// Writes the end of an id that was made here, whose beginning is the time; another id as it is, cut where it is long.
pub(super) fn short(id: &str) -> String {
    const END: usize = 8;
    const LONG: usize = 24;
    if uuid::Uuid::try_parse(id).is_ok() {
        return format!("…{}", &id[id.len() - END..]);
    }
    cut_after(LONG, id)
}

/// Writes the path of what has this id. The characters that a path has without an escape stand as they are.
pub(super) fn path(place: &str, id: &str) -> String {
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    format!("{place}/{}", utf8_percent_encode(id, ESCAPED))
}

/// Writes an address with these parameters.
pub(super) fn address<'a>(path: &str, parameters: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    format!("{path}?{query}")
}

/// Writes the address of the list of the jobs that have this value in a field.
pub(super) fn found(field: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    address("/jobs", [("kql", format!("{field}: \"{value}\"").as_str())])
}

/// Writes the address of the list of the jobs that have this value of a label; `None` where a query cannot name the
/// label without spelling it.
pub(super) fn labelled(name: &str, value: &str) -> Option<String> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    is_plain.then(|| found(&format!("labels.{name}"), value))
}

/// Returns the parts of a sentence, each with whether it stands between backticks and so is code.
pub(super) fn pieces(sentence: &str) -> impl Iterator<Item = (&str, bool)> {
    sentence.split('`').enumerate().map(|(at, part)| (part, at % 2 == 1))
}

/// Writes a percentile for the script that draws it; a dash where there is none.
pub(super) fn raw(millis: &Option<f64>) -> String {
    millis.map_or_else(|| "-".to_owned(), |millis| format!("{millis:.1}"))
}

/// Returns how many jobs of a queue are in a state.
pub(super) fn of(jobs: &BTreeMap<JobState, u64>, state: impl Borrow<JobState>) -> u64 {
    jobs.get(state.borrow()).copied().unwrap_or_default()
}

/// Writes how many jobs of a queue ended in the last minute.
pub(super) fn a_minute(throughput: &[Throughput]) -> String {
    throughput.first().map(|last| number(last.completed + last.failed)).unwrap_or_default()
}

/// Cuts a text that is too long for a cell.
pub(super) fn cut(text: &str) -> String {
    const LONG: usize = 120;
    cut_after(LONG, text.lines().next().unwrap_or_default())
}

fn cut_after(length: usize, text: &str) -> String {
    if text.chars().count() <= length { text.to_owned() } else { text.chars().take(length).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(number(0), "0");
        assert_eq!(number(999), "999");
        assert_eq!(number(1_234_567), "1\u{202f}234\u{202f}567");
    }

    #[test]
    fn only_ids_that_were_made_here_lose_their_beginning() {
        assert_eq!(short("0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5"), "…bdad0cd5");
        assert_eq!(short("nightly-report"), "nightly-report");
        assert_eq!(short(&"é".repeat(30)), format!("{}…", "é".repeat(24)));
    }

    #[test]
    fn what_stands_between_backticks_is_code() {
        let parts: Vec<_> = pieces("`a b` shows it: `c`").collect();
        assert_eq!(parts, [("", false), ("a b", true), (" shows it: ", false), ("c", true), ("", false)]);
    }

    #[test]
    fn a_query_for_a_name_holds_whatever_the_name_has() {
        assert_eq!(found("queue", "night"), "/jobs?kql=queue%3A+%22night%22");
        assert_eq!(found("kind", r#"a"b\c"#), "/jobs?kql=kind%3A+%22a%5C%22b%5C%5Cc%22");
        assert_eq!(labelled("month", "2030-01").as_deref(), Some("/jobs?kql=labels.month%3A+%222030-01%22"));
        assert_eq!(labelled("a b", "c"), None, "a query would have to spell it");
    }

    #[test]
    fn a_time_has_its_exact_form_beside_its_distance() {
        let now = Timestamp::from_millis(1_000_000_000);
        let shown = moment(&Timestamp::from_millis(999_940_000), &now).to_string();
        let exact = "1970-01-12T13:45:40.000Z";
        assert_eq!(shown, format!("<time datetime=\"{exact}\" title=\"{exact}\">60s ago</time>"));
    }
}
