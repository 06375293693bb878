//! Fire times on the command line, which need no server.

use serde_json::json;

use crate::program::{Ended, run};

fn next(arguments: &[&str]) -> Ended {
    let place = tempfile::tempdir().expect("a directory");
    run(place.path(), ["schedule", "next"].iter().chain(arguments))
}

#[test]
fn fire_times_are_shown_as_the_clock_of_the_zone_shows_them() {
    let spring = ["30 2 * * *", "--time-zone", "Europe/Berlin", "--from", "2030-03-30T00:00:00Z", "-n", "3"];
    let said = next(&spring).expect(0).stdout();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].trim().starts_with("fire time (Europe/Berlin)"), "{said}");
    for (line, shown) in lines[2..].iter().zip([
        "Sat 2030-03-30 02:30:00 +01:00",
        "Sun 2030-03-31 03:00:00 +02:00",
        "Mon 2030-04-01 02:30:00 +02:00",
    ]) {
        assert!(line.trim().starts_with(shown) && (line.contains(" in ") || line.ends_with(" ago")), "{said}");
    }
    assert_eq!(lines.len(), 5, "{said}");

    let json_line =
        next(&[&spring[..], &["--exclude", "2030-03-30..2030-03-31,2030-04-02", "--json"]].concat()).json(0);
    let expected = ["2030-04-01T00:30:00.000Z", "2030-04-03T00:30:00.000Z", "2030-04-04T00:30:00.000Z"];
    assert_eq!(json_line, json!({"fire_times": expected}));

    let even = next(&["--every", "15m", "--from", "2030-01-01T00:07:00Z", "-n", "2", "--json"]).json(0);
    assert_eq!(even, json!({"fire_times": ["2030-01-01T00:15:00.000Z", "2030-01-01T00:30:00.000Z"]}));

    let none = next(&["@daily", "--exclude", "2000-01-01..2500-01-01"]).expect(0).stdout();
    assert_eq!(none.trim(), "no fire time within a hundred years");
}

#[test]
fn a_mistake_is_told_in_words() {
    for (arguments, said) in [
        (&["0 0 MON * *"][..], "day of the month `MON`: belongs into the field of the day of the week"),
        (&["0 0 31 2 *"], "never fires"),
        (&["@daily", "--time-zone", "Berlin"], "did you mean `Europe/Berlin`?"),
        (&["--every", "10ms"], "--every must be from 1s to 366d"),
        (&["@daily", "--every", "1h"], "cannot be used with"),
        (&["@daily", "--exclude", "2030-12-24..2030-12-23"], "the last day is before the first"),
        (&["@daily", "--from", "noon"], "RFC 3339"),
        (&["@daily", "-n", "0"], "0 is not in 1..=100000"),
        (&[], "<CRON>"),
    ] {
        let ended = next(arguments).expect(2);
        assert!(ended.stderr().contains(said), "{arguments:?}: {}", ended.stderr());
        assert_eq!(ended.stdout(), "", "{arguments:?}");
    }
}
