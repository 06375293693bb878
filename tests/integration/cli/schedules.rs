//! Fire times and crontabs on the command line, which need no server.

use serde_json::{Value, json};

use crate::program::{Ended, Started, leasehold, run};

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

const CRONTAB: &str = "\
PATH=/usr/bin
# Every night
30 2 * * * ./backup.sh%yes
@reboot ./start
0 0 MON * * ./wrong
";

#[test]
fn a_crontab_is_reported_with_what_was_not_understood() {
    let place = tempfile::tempdir().expect("a directory");
    std::fs::write(place.path().join("crontab.txt"), CRONTAB).expect("a file");
    let import = ["schedule", "import", "--dry-run", "crontab.txt", "--time-zone", "Europe/Berlin"];
    let report = run(place.path(), import).expect(2);
    assert_eq!(report.stderr(), "");
    for said in [
        "./backup.sh",
        " 02:30:00 +0",
        "line 4: runs when the machine starts",
        "line 5: day of the month `MON`: belongs into the field of the day of the week",
    ] {
        assert!(report.stdout().contains(said), "{said}: {}", report.stdout());
    }

    let lines = run(place.path(), [&import[..], &["--json"]].concat()).expect(2).stdout();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    let mut first = lines[0].clone();
    assert!(first["next"].take().as_str().is_some_and(|next| next.ends_with(":30:00.000Z")), "{first}");
    let expected = json!({
        "line": 3, "cron": "30 2 * * *", "time_zone": "Europe/Berlin", "next": null, "user": null,
        "command": "./backup.sh", "input": "yes", "environment": {"PATH": "/usr/bin"}, "comment": "Every night",
    });
    assert_eq!(first, expected);
    assert_eq!(lines.iter().map(|line| &line["line"]).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(lines[1]["text"], "@reboot ./start");
}

#[test]
fn a_crontab_comes_from_standard_input_too_and_has_a_bound() {
    let place = tempfile::tempdir().expect("a directory");
    let read = |input: &str, flags: &[&str]| {
        let arguments = ["schedule", "import", "-"].iter().chain(flags);
        Started::with_input(&mut leasehold(place.path(), arguments), input).end()
    };
    let report = read("@daily root sync\n", &["--dry-run", "--system"]).expect(0).stdout();
    assert!(report.contains("root") && report.contains("sync") && !report.contains("not understood"), "{report}");
    let long = read(&"#".repeat(256 * 1024 + 1), &["--dry-run"]).expect(2).stderr();
    assert!(long.contains("more than 262144 bytes"), "{long}");
    assert!(read("", &[]).expect(2).stderr().contains("--dry-run"));
    let missing = run(place.path(), ["schedule", "import", "--dry-run", "no-such-file"]).expect(2).stderr();
    assert!(missing.contains("cannot read no-such-file"), "{missing}");
}
