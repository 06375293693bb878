mod enumeration;
mod expressions;
mod keeping;
mod pauses;
mod plans;
mod troubles;

use std::time::Duration;

use super::*;
use crate::clock::Timestamp;

fn time(text: &str) -> Timestamp {
    Timestamp::parse_rfc3339(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn cron(text: &str) -> Cron {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn period(expression: &str, zone: &str) -> Period {
    Period { repeat: Repeat::Cron(cron(expression)), zone: parse_zone(zone).expect("a zone") }
}

fn fire_times(period: &Period, from: &str, n: usize) -> Vec<String> {
    period.fire_times(time(from), &ExcludedDays::default()).take(n).map(Timestamp::to_rfc3339).collect()
}

/// Checks the fire times of each expression after a moment: to the minute, separated by spaces.
fn assert_fires(zone: &str, from: &str, cases: &[(&str, &str)]) {
    for (expression, expected) in cases {
        let expected: Vec<String> = expected.split(' ').map(|minute| format!("{minute}:00.000Z")).collect();
        let found = fire_times(&period(expression, zone), from, expected.len());
        assert_eq!(found, expected, "{expression} in {zone}");
    }
}

#[test]
fn in_berlin_a_time_left_out_is_fired_at_the_end_of_the_gap_and_a_time_shown_twice_once() {
    let both_forms = "2026-03-28T02:30 2026-03-29T00:30 2026-03-29T01:00 2026-03-29T01:30 2026-03-29T23:30";
    assert_fires(
        "Europe/Berlin",
        "2026-03-28T01:00:00Z",
        &[
            ("30 2 * * *", "2026-03-28T01:30 2026-03-29T01:00 2026-03-30T00:30"),
            ("0 2,3 * * *", "2026-03-28T02:00 2026-03-29T01:00 2026-03-30T00:00 2026-03-30T01:00"),
        ],
    );
    let forms = ["30 1-3 * * *", "30 1,2,3 * * *", "30 1-3/1 * * *"].map(|form| (form, both_forms));
    assert_fires("Europe/Berlin", "2026-03-28T02:00:00Z", &forms);
    let once = "2026-10-24T23:30 2026-10-25T00:30 2026-10-25T02:30 2026-10-26T00:30";
    let forms = ["30 1-3 * * *", "30 1,2,3 * * *", "30 1-3/1 * * *"].map(|form| (form, once));
    assert_fires("Europe/Berlin", "2026-10-24T20:00:00Z", &forms);
    // A search that starts while the clock shows an hour again does not fire its times again.
    assert_fires("Europe/Berlin", "2026-10-25T01:10:00Z", &[("30 2 * * *", "2026-10-26T01:30")]);
}

#[test]
fn in_new_york_the_same_holds() {
    assert_fires(
        "America/New_York",
        "2026-03-07T00:00:00Z",
        &[("30 2 * * *", "2026-03-07T07:30 2026-03-08T07:00 2026-03-09T06:30")],
    );
    assert_fires(
        "America/New_York",
        "2026-10-31T00:00:00Z",
        &[("30 1 * * *", "2026-10-31T05:30 2026-11-01T05:30 2026-11-02T06:30")],
    );
}

#[test]
fn on_lord_howe_where_clocks_change_by_half_an_hour_the_same_holds() {
    assert_fires(
        "Australia/Lord_Howe",
        "2026-10-02T00:00:00Z",
        &[("15 2 * * *", "2026-10-02T15:45 2026-10-03T15:30 2026-10-04T15:15")],
    );
    assert_fires(
        "Australia/Lord_Howe",
        "2026-04-03T00:00:00Z",
        &[("45 1 * * *", "2026-04-03T14:45 2026-04-04T14:45 2026-04-05T15:15")],
    );
}

#[test]
fn in_kolkata_where_clocks_never_change_all_days_are_alike() {
    for (from, expected) in [
        ("2026-03-28T00:00:00Z", "2026-03-28T21:00 2026-03-29T21:00 2026-03-30T21:00"),
        ("2026-10-24T00:00:00Z", "2026-10-24T21:00 2026-10-25T21:00 2026-10-26T21:00"),
    ] {
        assert_fires("Asia/Kolkata", from, &[("30 2 * * *", expected)]);
    }
}

#[test]
fn an_expression_for_every_hour_goes_on_evenly_while_the_clock_changes() {
    for (zone, from) in [
        ("Europe/Berlin", "2026-03-28T22:00:00Z"),
        ("Europe/Berlin", "2026-10-24T22:00:00Z"),
        ("America/New_York", "2026-03-08T04:00:00Z"),
        ("America/New_York", "2026-11-01T04:00:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T12:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T12:00:00Z"),
        ("Pacific/Apia", "2011-12-30T07:00:00Z"),
    ] {
        let even: Vec<Timestamp> =
            (1..=30).map(|number| time(from).plus(Duration::from_secs(number * 15 * 60))).collect();
        for expression in ["*/15 * * * *", "0,15,30,45 0-23 * * *", "0 */15 */1 * * *"] {
            let found: Vec<Timestamp> =
                period(expression, zone).fire_times(time(from), &ExcludedDays::default()).take(30).collect();
            assert_eq!(found, even, "{expression} in {zone}");
        }
    }
    // What is left out within the hour is not made up for.
    assert_fires("Europe/Berlin", "2026-03-29T00:00:00Z", &[("30 * * * *", "2026-03-29T00:30 2026-03-29T01:30")]);
}

#[test]
fn a_day_that_a_zone_has_left_out_is_made_up_for_and_does_not_end_anything() {
    assert_fires(
        "Pacific/Apia",
        "2011-12-29T00:00:00Z",
        &[
            ("0 12 * * *", "2011-12-29T22:00 2011-12-30T10:00 2011-12-30T22:00"),
            ("0 12 30 * *", "2011-12-30T10:00 2012-01-29T22:00"),
            ("0 * 30 * *", "2012-01-29T10:00 2012-01-29T11:00"),
        ],
    );
}

#[test]
fn clocks_that_go_back_at_midnight_show_the_end_of_the_day_twice() {
    // In Beirut it is 23:00 again at 21:00 UTC, on the same Saturday.
    assert_fires(
        "Asia/Beirut",
        "2026-10-24T19:59:00Z",
        &[
            ("30 * * * SAT", "2026-10-24T20:30 2026-10-24T21:30 2026-10-30T22:30"),
            ("30 23 * * SAT", "2026-10-24T20:30 2026-10-31T21:30"),
        ],
    );
}

#[test]
fn a_fire_time_is_after_the_moment_to_the_millisecond() {
    let every_second = period("* * * * * *", "UTC");
    for (from, first) in [
        ("2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000Z"),
        ("2026-01-01T00:00:00.001Z", "2026-01-01T00:00:01.000Z"),
        ("2026-01-01T00:00:00.999Z", "2026-01-01T00:00:01.000Z"),
        ("1969-12-31T23:59:58.500Z", "1969-12-31T23:59:59.000Z"),
    ] {
        assert_eq!(fire_times(&every_second, from, 1), [first], "{from}");
    }
}

#[test]
fn moments_at_a_fixed_distance_keep_to_their_anchor_before_and_after_it() {
    let every = |millis, anchor| {
        let every = Every::new(millis, time(anchor)).expect("a distance");
        Period { repeat: Repeat::Every(every), zone: chrono_tz::UTC }
    };
    let odd = every(1_500, "2026-01-01T00:00:00.250Z");
    assert_eq!(
        fire_times(&odd, "2025-12-31T23:59:58.750Z", 3),
        ["2026-01-01T00:00:00.250Z", "2026-01-01T00:00:01.750Z", "2026-01-01T00:00:03.250Z"]
    );
    let far = every(*EVERY_MS.end(), "9999-12-31T23:59:59.999Z");
    assert_eq!(fire_times(&far, "0001-01-01T00:00:00Z", 1).len(), 1);
    for millis in [0, 1, 999, EVERY_MS.end() + 1, u64::MAX] {
        assert_eq!(Every::new(millis, Timestamp::default()), None, "{millis}");
    }
}

#[test]
fn one_moment_is_fired_once() {
    let once = Period { repeat: Repeat::Once(time("2026-01-01T00:00:00.250Z")), zone: chrono_tz::UTC };
    assert_eq!(fire_times(&once, "2026-01-01T00:00:00.249Z", 5), ["2026-01-01T00:00:00.250Z"]);
    assert!(fire_times(&once, "2026-01-01T00:00:00.250Z", 5).is_empty());
}

#[test]
fn days_are_excluded_by_the_calendar_of_the_zone() {
    let day = |text| parse_day(text).expect("a day");
    let excluded = ExcludedDays::new([day("2026-12-24")..=day("2026-12-26"), day("2026-12-28")..=day("2026-12-28")]);
    let daily = period("30 0 * * *", "Europe/Berlin");
    let found: Vec<String> =
        daily.fire_times(time("2026-12-22T12:00:00Z"), &excluded).take(3).map(Timestamp::to_rfc3339).collect();
    assert_eq!(found, ["2026-12-22T23:30:00.000Z", "2026-12-26T23:30:00.000Z", "2026-12-28T23:30:00.000Z"]);
    // The seconds of some seventy years are passed over at once.
    let ages = ExcludedDays::new([day("2026-01-01")..=day("2099-12-31")]);
    let next = period("* * * * * *", "UTC").fire_times(time("2026-01-01T00:00:00Z"), &ages).next();
    assert_eq!(next, Some(time("2100-01-01T00:00:00Z")));
    let forever = ExcludedDays::new([day("0001-01-01")..=day("9999-12-31")]);
    assert_eq!(daily.fire_times(time("2026-01-01T00:00:00Z"), &forever).next(), None);
}

#[test]
fn fire_times_end_with_the_horizon_and_with_the_calendar() {
    assert_eq!(fire_times(&period("@yearly", "UTC"), "2026-06-01T00:00:00Z", 1_000).len(), 100);
    assert_eq!(fire_times(&period("0 0 29 2 */7", "UTC"), "2026-06-01T00:00:00Z", 1_000).len(), 3);
    let all = ["@hourly", "30 2 * * *", "* * * * * *"];
    for (expression, zone) in
        all.iter().flat_map(|all| ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"].map(|zone| (all, zone)))
    {
        let last = period(expression, zone).fire_times(Timestamp::MAX, &ExcludedDays::default()).next();
        assert_eq!(last, None, "{expression} in {zone}");
        let first = period(expression, zone).fire_times(Timestamp::MIN, &ExcludedDays::default()).next();
        assert!(first.is_some(), "{expression} in {zone}");
    }
}
