//! Which expressions are taken, what they mean, and what is said of the others.

use chrono::Datelike as _;

use super::*;

#[test]
fn a_mistake_is_named_with_its_field_and_what_to_write_instead() {
    for (text, said) in [
        ("60 * * * *", "minute `60`: must be from 0 to 59"),
        ("60 * * * * *", "second `60`: must be from 0 to 59"),
        ("0 24 * * *", "hour `24`: must be from 0 to 23"),
        ("0 0 0 * *", "day of the month `0`: must be from 1 to 31"),
        ("0 0 1 13 *", "month `13`: must be from 1 to 12, or a name from JAN to DEC"),
        ("0 0 * * 8", "day of the week `8`: must be from 0 to 7, or a name from SUN to SAT"),
        ("0 0 mon * *", "day of the month `MON`: belongs into the field of the day of the week"),
        ("JAN 0 * * *", "minute `JAN`: belongs into the field of the month"),
        ("0 0 1 JANFEB *", "month `JANFEB`: must be from 1 to 12, or a name from JAN to DEC"),
        ("0 0 1 JAN0 *", "month `JAN0`: must be from 1 to 12, or a name from JAN to DEC"),
        ("1,,2 * * * *", "minute ``: an entry of the list is missing; remove a comma"),
        (",1 * * * *", "minute ``: an entry of the list is missing; remove a comma"),
        ("1, * * * *", "minute ``: an entry of the list is missing; remove a comma"),
        ("5/15 * * * *", "minute `5/15`: a step needs `*` or a range before it, such as `5-59/15`"),
        ("/15 * * * *", "minute `/15`: a step needs `*` or a range before it, such as `*/15`"),
        (
            "*/0 * * * *",
            "minute `*/0`: a step must be from 1 to 59; a longer distance is a period of its own, `every_ms`",
        ),
        (
            "*/90 * * * *",
            "minute `*/90`: a step must be from 1 to 59; a longer distance is a period of its own, `every_ms`",
        ),
        ("0 22-4 * * *", "hour `22-4`: the range ends before it begins; write it as two, `22-23,0-4`"),
        ("0 0 * * FRI-MON", "day of the week `FRI-MON`: the range ends before it begins; write it as two, `5-7,0-1`"),
        ("+5 * * * *", "minute `+5`: must be from 0 to 59"),
        ("0x5 * * * *", "minute `0X5`: must be from 0 to 59"),
        ("1-2-3 * * * *", "minute `1-2-3`: must be from 0 to 59"),
        ("** * * * *", "minute `**`: must be from 0 to 59"),
        ("0 0 ? * MON", "day of the month `?`: write `*` for any value"),
        ("0 0 15W * *", "day of the month `15W`: must be from 1 to 31"),
        ("0 0 * * +MON", "day of the week `+MON`: must be from 0 to 7, or a name from SUN to SAT"),
        ("0 L * * *", "hour `L`: must be from 0 to 23"),
        ("0 0 * * L", "day of the week `L`: must be from 0 to 7, or a name from SUN to SAT"),
        ("0 0 * * MON#6", "day of the week `MON#6`: the number after `#` must be from 1 to 5"),
        ("0 0 * * MON#L", "day of the week `MON#L`: the number after `#` must be from 1 to 5"),
        (
            "@fortnightly",
            "`@fortnightly` is none of @hourly, @daily, @midnight, @weekly, @monthly, @yearly and @annually",
        ),
        ("0 0 31 FEB *", "never fires: no month has such a day"),
        ("0 0 31 2,4,6,9,11 *", "never fires: no month has such a day"),
        ("0 0 30 2 */2", "never fires: no month has such a day"),
    ] {
        assert_eq!(text.parse::<Cron>().map_err(|error| error.to_string()).err().as_deref(), Some(said), "{text}");
    }
}

#[test]
fn an_expression_has_five_or_six_fields_and_a_bound() {
    for (text, fields) in [("", 0), ("  ", 0), ("* * FEB", 3), ("* * * *", 4), ("0 0 0 1 1 * 2030", 7)] {
        assert_eq!(text.parse::<Cron>().err(), Some(InvalidCron::FieldCount(fields)), "{text}");
    }
    let long = "0,".repeat(MAX_CRON_BYTES) + "0 * * * *";
    assert_eq!(long.parse::<Cron>().err(), Some(InvalidCron::TooLong(long.len())));
    assert!("\u{212a} * * * *".parse::<Cron>().is_err() && "ſun * * * *".parse::<Cron>().is_err());
}

#[test]
fn two_ways_to_write_a_thing_mean_the_same() {
    for (one, other) in [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@Annually", "0 0 1 JAN *"),
        ("0 0 0 * * *", " 0\t0  * * * "),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * sat-sun", "0 0 * * 6,0"),
        ("0 0 * * SUN-TUE", "0 0 * * 0-2"),
        ("0 0 * * SUN#2", "0 0 * * 7#2"),
        ("0 0 * * SUNL", "0 0 * * 7L"),
        ("0 0 * jan,mar-may *", "0 0 * 1,3-5 *"),
        ("00 08-18/2 * * *", "0 8,10,12,14,16,18 * * *"),
    ] {
        let of = |text| fire_times(&period(text, "Europe/Berlin"), "2026-01-01T00:00:00Z", 100);
        assert_eq!(of(one), of(other), "{one}");
    }
}

#[test]
fn a_day_satisfies_either_field_unless_one_begins_with_a_star() {
    assert_fires(
        "UTC",
        "2026-02-01T00:00:00Z",
        &[
            ("0 0 13 * FRI", "2026-02-06T00:00 2026-02-13T00:00 2026-02-20T00:00"),
            ("0 0 */2 * FRI", "2026-02-13T00:00 2026-02-27T00:00 2026-03-13T00:00"),
            ("0 0 1-7 * */7", "2026-03-01T00:00 2026-04-05T00:00 2026-05-03T00:00"),
        ],
    );
}

#[test]
fn days_that_depend_on_the_month_are_found_there() {
    assert_fires(
        "UTC",
        "2026-02-01T00:00:00Z",
        &[
            ("0 0 L * *", "2026-02-28T00:00 2026-03-31T00:00 2026-04-30T00:00"),
            ("0 0 15,L * *", "2026-02-15T00:00 2026-02-28T00:00 2026-03-15T00:00"),
            ("0 0 * * FRIL", "2026-02-27T00:00 2026-03-27T00:00 2026-04-24T00:00"),
            ("0 0 * * TUE#2,THU#4", "2026-02-10T00:00 2026-02-26T00:00 2026-03-10T00:00"),
            ("0 0 29 2 *", "2028-02-29T00:00 2032-02-29T00:00"),
            // The fifth Thursday of a February.
            ("0 0 * 2 4#5", "2052-02-29T00:00 2080-02-29T00:00"),
        ],
    );
}

#[test]
fn a_29_february_on_a_weekday_is_the_rarest_day_and_never_more_than_40_years_away() {
    for weekday in 0..7 {
        let mut day = parse_day("2000-01-01").expect("a day");
        let expression = cron(&format!("0 0 * 2 {weekday}#5"));
        let mut longest = 0;
        while day.year() < 2_400 {
            let next = expression.at_or_after(day.succ_opt().expect("a day").into()).expect("another").date();
            longest = longest.max(next.year() - day.year());
            day = next;
        }
        assert!((28..=40).contains(&longest), "{weekday}: {longest}");
    }
}
