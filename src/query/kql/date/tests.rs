use super::*;

const NOW: &str = "2026-11-21T12:34:56.789Z";

fn time(text: &str) -> Timestamp {
    Timestamp::parse_rfc3339(text).expect("a time")
}

fn ends_in(text: &str, zone: &str) -> (String, String) {
    let zone = Zone::parse(zone).expect("a zone");
    let moment = Moment::parse(text, zone).unwrap_or_else(|| panic!("{text} is a time"));
    (moment.at(time(NOW), End::First).to_rfc3339(), moment.at(time(NOW), End::Last).to_rfc3339())
}

#[track_caller]
fn spans(text: &str, first: &str, last: &str) {
    assert_eq!(ends_in(text, "Z"), (format!("{first}Z"), format!("{last}Z")), "{text}");
}

#[test]
fn a_time_cut_short_reaches_from_its_first_millisecond_to_its_last() {
    spans("2026-11-21", "2026-11-21T00:00:00.000", "2026-11-21T23:59:59.999");
    spans("2026-11-21T", "2026-11-21T00:00:00.000", "2026-11-21T23:59:59.999");
    spans("2026-11-21T12", "2026-11-21T12:00:00.000", "2026-11-21T12:59:59.999");
    spans("2026-11-21T12:30", "2026-11-21T12:30:00.000", "2026-11-21T12:30:59.999");
    spans("2026-11-21T12:30:15", "2026-11-21T12:30:15.000", "2026-11-21T12:30:15.999");
    spans("2026-11-21T12:30:15.1", "2026-11-21T12:30:15.100", "2026-11-21T12:30:15.100");
    spans("2026-11-21T12:30:15,123456789Z", "2026-11-21T12:30:15.123", "2026-11-21T12:30:15.123");
    spans("2026-11-21T12:30:15+02:00", "2026-11-21T10:30:15.000", "2026-11-21T10:30:15.999");
    spans("2026-11-21T12-0330", "2026-11-21T15:30:00.000", "2026-11-21T16:29:59.999");
    spans("1795262400000", "2026-11-21T12:00:00.000", "2026-11-21T12:00:00.000");
    spans("12345", "1970-01-01T00:00:12.345", "1970-01-01T00:00:12.345");
}

#[test]
fn a_missing_month_or_day_is_the_first_in_either_case() {
    spans("2026", "2026-01-01T00:00:00.000", "2026-01-01T23:59:59.999");
    spans("2026-11", "2026-11-01T00:00:00.000", "2026-11-01T23:59:59.999");
}

#[test]
fn arithmetic_goes_from_left_to_right_and_rounds_to_either_end() {
    spans("now", "2026-11-21T12:34:56.789", "2026-11-21T12:34:56.789");
    spans("now-15m", "2026-11-21T12:19:56.789", "2026-11-21T12:19:56.789");
    spans("now-d", "2026-11-20T12:34:56.789", "2026-11-20T12:34:56.789");
    spans("now/d", "2026-11-21T00:00:00.000", "2026-11-21T23:59:59.999");
    spans("now/1h", "2026-11-21T12:00:00.000", "2026-11-21T12:59:59.999");
    spans("now/w", "2026-11-16T00:00:00.000", "2026-11-22T23:59:59.999");
    spans("now/M", "2026-11-01T00:00:00.000", "2026-11-30T23:59:59.999");
    spans("now-1y/y", "2025-01-01T00:00:00.000", "2025-12-31T23:59:59.999");
    spans("now/m+1s", "2026-11-21T12:34:01.000", "2026-11-21T12:35:00.999");
    spans("now/d-2H", "2026-11-20T22:00:00.000", "2026-11-21T21:59:59.999");
    spans("2026-03-31||-1M", "2026-02-28T00:00:00.000", "2026-02-28T00:00:00.000");
    spans("2024-02-29||+1y/d", "2025-02-28T00:00:00.000", "2025-02-28T23:59:59.999");
}

#[test]
fn a_zone_moves_days_and_times_without_one_but_not_milliseconds() {
    let both = |first: &str, last: &str| (first.to_owned(), last.to_owned());
    assert_eq!(ends_in("2026-11-21", "+02:00"), both("2026-11-20T22:00:00.000Z", "2026-11-21T21:59:59.999Z"));
    assert_eq!(ends_in("now/d", "-0930"), both("2026-11-21T09:30:00.000Z", "2026-11-22T09:29:59.999Z"));
    assert_eq!(ends_in("2026-11-21T01Z", "+02"), both("2026-11-21T01:00:00.000Z", "2026-11-21T01:59:59.999Z"));
    assert_eq!(ends_in("0", "+02"), both("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z"));
    assert_eq!(Zone::parse("+02").map(Zone::name).as_deref(), Some("+02:00"));
    assert!(Zone::parse("UTC").is_some_and(Zone::is_utc));
    for text in ["", "+2", "+19:00", "Europe", "EST", "Europe/Nowhere", "+02:00x", "+02:60"] {
        assert_eq!(Zone::parse(text), None, "{text}");
    }
}

#[test]
fn a_place_has_the_offset_of_the_day() {
    let both = |first: &str, last: &str| (first.to_owned(), last.to_owned());
    let berlin =
        |text: &str, first: &str, last: &str| assert_eq!(ends_in(text, "Europe/Berlin"), both(first, last), "{text}");
    berlin("2026-07-01", "2026-06-30T22:00:00.000Z", "2026-07-01T21:59:59.999Z");
    berlin("2026-12-01", "2026-11-30T23:00:00.000Z", "2026-12-01T22:59:59.999Z");
    berlin("now/d", "2026-11-20T23:00:00.000Z", "2026-11-21T22:59:59.999Z");
    // A day of 23 hours, and one of 25.
    berlin("2026-03-29", "2026-03-28T23:00:00.000Z", "2026-03-29T21:59:59.999Z");
    berlin("2026-10-25", "2026-10-24T22:00:00.000Z", "2026-10-25T22:59:59.999Z");
    // A time that there is not, and one that there is twice.
    berlin("2026-03-29T02:30", "2026-03-29T01:30:00.000Z", "2026-03-29T01:30:59.999Z");
    berlin("2026-10-25T02:30", "2026-10-25T00:30:00.000Z", "2026-10-25T00:30:59.999Z");
    // A day later it is the same time of day, 24 hours later it is not.
    berlin("2026-03-28T12:00:00.000||+1d", "2026-03-29T10:00:00.000Z", "2026-03-29T10:00:00.000Z");
    berlin("2026-03-28T12:00:00.000||+24h", "2026-03-29T11:00:00.000Z", "2026-03-29T11:00:00.000Z");
    assert_eq!(Zone::parse("Europe/Berlin").map(Zone::name).as_deref(), Some("Europe/Berlin"));
}

#[test]
fn what_is_no_time_is_none() {
    let texts = [
        "",
        "now+",
        "now/2d",
        "nowhere",
        "now||-1d",
        " now",
        "NOW",
        "now-1D",
        "now-99999999999d",
        "now-9999y",
        "now+9999y",
        "2026-02-30",
        "2026-11-21T24:00",
        "2026-11-21T12:00:60",
        "02026-01-01",
        "+2026-01-01",
        "2026-1-1",
        "2026-11-21Z",
        "2026-11T12",
        "2026-11-21t12:00:00z",
        "2026-W47",
        "true",
        "-5",
        "99999999999999999999",
        "1795262400000||/d",
        "2026-11-21T12:00:00.",
        "0000-01-01",
        "now/d/",
        "１２３",
    ];
    for text in texts {
        assert_eq!(Moment::parse(text, Zone::default()), None, "{text:?}");
    }
    assert_eq!(Moment::parse(&format!("now{}", "-1s".repeat(100)), Zone::default()), None);
}
