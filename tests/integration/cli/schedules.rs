//! Schedules, fire times and crontabs on the command line.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};

use super::Bed;
use crate::program::{Ended, Started, leasehold, run, until};

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
    assert!(report.stderr().contains("\nwhat it replaces is not known: "), "{}", report.stderr());
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
        "command": "./backup.sh", "input": "yes\n", "environment": {"PATH": "/usr/bin"}, "comment": "Every night",
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
    let missing = run(place.path(), ["schedule", "import", "--dry-run", "no-such-file"]).expect(2).stderr();
    assert!(missing.contains("cannot read no-such-file"), "{missing}");
}

/// Crontabs whose lines leave a mark each, and the marks.
const MARKS: &str = r#"
SHELL=/bin/bash
HOME=@here@
PATH=@here@/tools
SITE=a
0 3 * * * [[ -n $SITE ]] && /usr/bin/touch bash-$SITE
SITE=b
0 3 * * * [[ -n $SITE ]] && /usr/bin/touch bash-$SITE
0 3 * * * while read -r line; do /usr/bin/touch "read-$line"; done%first%second
0 3 * * * /usr/bin/touch day-$(/bin/date +\%Y)
SHELL=sh
0 3 * * * while read -r line; do /usr/bin/touch "sh-$line"; done%third
0 3 * * * /bin/pwd > where
0 3 * * * echo twice >> @here@/twice
0 3 * * * echo twice >> @here@/twice
"#;

#[test]
fn each_line_of_a_crontab_does_what_cron_does_with_it() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let here = bed.path().join("home");
    std::fs::create_dir(&here).expect("created");
    let long = "# a comment that nobody deletes\n".repeat(60);
    let text =
        format!("\u{feff}{long}{}", MARKS.replace("@here@", here.to_str().expect("a path")).replace('\n', "\r\n"));
    std::fs::write(bed.path().join("marks.crontab"), text).expect("written");
    bed.run(&["schedule", "import", "--dry-run", "marks.crontab"]).expect(0);
    let ids = bed.run(&["schedule", "import", "marks.crontab"]).expect(0).stdout();
    let ids: Vec<&str> = ids.lines().filter(|line| line.starts_with("crontab-")).collect();
    assert_eq!(ids.len(), 8, "two lines that differ in a variable, or not at all, are two");
    for id in ids {
        bed.run(&["schedule", "run", id.split(':').next().unwrap_or(id)]).expect(0);
    }
    let year = SystemClock::default().now().to_rfc3339()[..4].to_owned();
    let marks = ["bash-a", "bash-b", "read-first", "read-second", &format!("day-{year}"), "sh-third", "where"];
    until("all have left their marks", || {
        let twice = std::fs::read_to_string(here.join("twice")).unwrap_or_default();
        marks.iter().all(|mark| here.join(mark).exists()) && twice.lines().count() == 2
    });
    let place = std::fs::read_to_string(here.join("where")).expect("it says where it ran");
    assert_eq!(place.trim(), here.canonicalize().expect("a path").to_str().expect("a path"));
}

#[test]
fn a_crontab_that_is_imported_again_replaces_what_it_changed_and_names_what_it_lost() {
    let bed = Bed::start();
    let write = |text: &str| std::fs::write(bed.path().join("c"), text).expect("written");
    let import = |flags: &[&str]| bed.run(&[&["schedule", "import", "c"], flags].concat());
    let crons = || {
        let list = bed.run(&["schedule", "list", "--json"]).expect(0).stdout();
        let list = list.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let mut crons: Vec<String> =
            list.map(|one| one["period"]["cron"].as_str().unwrap_or_default().into()).collect();
        crons.sort();
        crons
    };
    write("0 1 * * * ./one\n0 2 * * * ./two\n0 3 * * * ./three\n");
    import(&[]).expect(0);
    write("0 9 * * * ./one\n0 3 * * * ./three\n");
    for (flags, left) in [
        (&["--dry-run"][..], &["0 1 * * *", "0 2 * * *", "0 3 * * *"][..]),
        (&[], &["0 2 * * *", "0 3 * * *", "0 9 * * *"]),
    ] {
        let said = import(flags).expect(0).stdout();
        assert!(said.contains("line 1: crontab-") && said.contains("was 0 1 * * * ./one"), "{flags:?}: {said}");
        assert!(said.contains("no longer in the crontab") && said.contains("0 2 * * * ./two"), "{flags:?}: {said}");
        assert_eq!(crons(), left, "{flags:?}");
    }
    let lines = import(&["--prune", "--json"]).expect(0).stdout();
    assert!(lines.lines().any(|line| line.starts_with("{\"lost\":\"crontab-")), "{lines}");
    assert_eq!(crons(), ["0 3 * * *", "0 9 * * *"]);

    write("0 9 * * * ./one\n@reboot ./start\n0 4 * * * ./four\n");
    let said = import(&[]).expect(2).stderr();
    assert!(said.contains("nothing is stored") && said.contains("--partial"), "{said}");
    assert_eq!(crons(), ["0 3 * * *", "0 9 * * *"]);
    import(&["--partial"]).expect(2);
    assert_eq!(crons(), ["0 3 * * *", "0 4 * * *", "0 9 * * *"]);
    write("0 9 * * * ./one\n0 25 * * * ./three\n");
    let said = import(&["--partial", "--prune"]).expect(2).stderr();
    assert!(said.contains("nothing is removed"), "{said}");
    write("# nothing\n");
    let said = import(&["--prune"]).expect(0).stderr();
    assert!(said.contains("nothing is removed"), "{said}");
    assert_eq!(crons(), ["0 3 * * *", "0 4 * * *", "0 9 * * *"]);

    // Another crontab with the same lines has schedules of its own.
    write("0 9 * * * ./one\n");
    import(&["--name", "other"]).expect(0);
    assert_eq!(crons(), ["0 3 * * *", "0 4 * * *", "0 9 * * *", "0 9 * * *"]);
    std::fs::write(bed.path().join("c"), b"# t\xe4glich\n0 2 * * * x\n").expect("written");
    assert!(import(&[]).expect(2).stderr().contains("c:1:4: the byte 0xe4 is not UTF-8"));
}

#[test]
fn what_an_earlier_version_has_imported_is_not_stored_a_second_time() {
    let bed = Bed::start();
    // As it was stored: by an id that follows from the line alone, and without the name of the crontab.
    let former = |id: &str, cron: &str, command: &str, env: Value| {
        let job = json!({"queue": "default", "kind": "shell", "payload": {"command": command, "env": env}});
        json!({"id": id, "labels": {"crontab_line": "1"}, "period": {"cron": cron, "time_zone": "UTC"},
               "action": {"type": "job", "job": job}})
    };
    let id = |input: &str, command: &str| {
        let identity = ["0 1 * * *", "UTC", "", command, input].join("\0");
        format!("crontab-{:016x}", xxhash_rust::xxh3::xxh3_64(identity.as_bytes()))
    };
    let stored = [
        former(&id("", "./one"), "0 1 * * *", "./one", json!({})),
        former(&id("x", "cat"), "0 1 * * *", "printf '%s' \"$CRON_INPUT\" | { cat\n}", json!({"CRON_INPUT": "x"})),
        former(&id("y\n", "cat"), "0 1 * * *", "printf '%s' \"$CRON_INPUT\" | { cat\n}", json!({"CRON_INPUT": "y\n"})),
    ];
    let lines: Vec<String> = stored.iter().map(Value::to_string).collect();
    std::fs::write(bed.path().join("stored"), lines.join("\n")).expect("written");
    bed.run(&["schedule", "add", "--file", "stored"]).expect(0);
    std::fs::write(bed.path().join("c"), "0 1 * * * ./one\n0 1 * * * cat%x\n0 1 * * * cat%y%\n").expect("written");
    bed.run(&["schedule", "import", "c"]).expect(0);
    let mut ids: Vec<String> = stored.iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect();
    ids.sort();
    assert_eq!(listed(&bed, &[]), ids);
    assert_eq!(listed(&bed, &["labels.crontab: c"]), ids, "they are of this crontab from now on");
}

#[test]
fn a_schedule_is_added_listed_paused_run_and_removed() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let add = ["schedule", "add", "nightly", "0 2 * * *", "--time-zone", "Europe/Berlin", "--", "echo", "done"];
    let added = bed.run(&add).expect(0).stdout();
    assert!(added.starts_with("nightly: due next at "), "{added}");
    bed.run(&add).expect(0);
    let another = ["schedule", "add", "nightly", "0 3 * * *", "--", "echo", "done"];
    assert!(bed.run(&another).expect(1).stderr().contains("another definition"));
    bed.run(&[&another[..2], &["--replace"], &another[2..]].concat()).expect(0);
    let list = bed.run(&["schedule", "list"]).expect(0).stdout();
    assert!(list.contains("nightly") && list.contains("0 3 * * *") && list.contains("shell in default"), "{list}");
    let paused = bed.run(&["schedule", "pause", "nightly", "--reason", "a move"]).expect(0).stdout();
    assert!(paused.contains("paused by anonymous: a move"), "{paused}");
    let show = bed.run(&["schedule", "show", "nightly"]).expect(0).stdout();
    assert!(show.contains("a move") && show.contains("overlap"), "{show}");
    assert_eq!(bed.run(&["schedule", "resume", "nightly"]).expect(0).stdout().trim(), "nightly: on");

    let trigger = bed.run(&["schedule", "run", "nightly"]).expect(0).stdout();
    bed.run(&["wait", trigger.trim()]).expect(0);
    let done = bed.job(trigger.trim());
    let job = done["result"]["job_id"].as_str().expect("a job").to_owned();
    bed.run(&["wait", &job]).expect(0);
    let (of, due) = (bed.job(&job)["schedule_id"].clone(), bed.job(&job)["due_at"].clone());
    assert_eq!((&of, &due), (&done["schedule_id"], &done["due_at"]));
    assert_eq!(of, "nightly");
    let shown = bed.run(&["get", &job]).expect(0).stdout();
    assert!(shown.contains("nightly") && shown.contains(due.as_str().expect("a time")), "{shown}");
    let found = bed.run(&["list", "schedule_id: nightly and due_at: *", "--sort", "due_at"]).expect(0).stdout();
    assert!(found.contains(&job[28..]), "{found}");

    let often = ["schedule", "add", "often", "--every", "1s", "--", "true"];
    bed.run(&often).expect(0);
    let fired = || bed.run(&["schedule", "triggers", "often"]).expect(0).stdout().contains("fired");
    until("it has fired", fired);
    bed.run(&["schedule", "remove", "often"]).expect(0);
    assert!(bed.run(&["schedule", "show", "often"]).expect(1).stderr().contains("no schedule often"));
    for (wrong, said) in [
        (&["schedule", "add", "x", "0 0 31 2 *", "--", "true"][..], "never fires"),
        (
            &["schedule", "add", "x", "@daily", "--time-zone", "Mars/Olympus", "--", "true"][..],
            "--time-zone: `Mars/Olympus`",
        ),
        (&["schedule", "add", "x", "@daily", "--call", "http://127.0.0.1/"][..], "action.url"),
        (&["schedule", "add", "x", "@daily"][..], "needs a command"),
    ] {
        let refused = bed.run(wrong);
        assert_ne!(refused.code(), Some(0), "{wrong:?}");
        assert!(refused.stderr().contains(said), "{wrong:?}: {}", refused.stderr());
    }
}

#[test]
fn a_schedule_is_backfilled_waited_for_and_shows_what_was_run() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let now = SystemClock::default().now();
    let ago = |hours: u64| now.minus(Duration::from_secs(hours * 3_600)).to_rfc3339();
    let hourly = ["schedule", "add", "hourly", "--every", "1h", "--", "true"];
    bed.run(&hourly).expect(0);
    let (from, to) = (ago(5), ago(1));
    let backfill = ["schedule", "backfill", "hourly", "--from", &from, "--to", &to];
    let waited = bed.run(&[&backfill[..], &["--max-concurrent", "2", "--wait"]].concat()).expect(0).stdout();
    assert!(waited.contains("due times          4") && waited.contains("performed          4"), "{waited}");
    let triggers = bed.run(&["schedule", "triggers", "hourly", "--from", &from]).expect(0).stdout();
    assert_eq!(triggers.matches("fired (backfill)").count(), 4, "{triggers}");
    let again = bed.run(&[&backfill[..], &["--wait", "--json"]].concat()).json(0);
    assert_eq!((&again["result"]["already"], &again["result"]["performed"]), (&json!(4), &json!(0)), "{again}");

    let id = bed.run(&backfill).expect(0).stdout();
    bed.run(&["wait", id.trim()]).expect(0);
    let shown = bed.run(&["get", id.trim()]).expect(0).stdout();
    assert!(shown.contains("leasehold.backfill") && shown.contains("\"already\":4"), "{shown}");
    let listed = bed.run(&["list"]).expect(0).stdout();
    assert!(!listed.contains("leasehold.backfill"), "the system's own jobs are not listed: {listed}");

    bed.run(&["schedule", "add", "broken", "--every", "1h", "--", "false"]).expect(0);
    let failing = ["schedule", "backfill", "broken", "--from", &from, "--to", &to, "--max-concurrent", "4", "--wait"];
    let failed = bed.run(&failing).expect(1).stdout();
    assert!(failed.contains("failed             4") && failed.contains("failed jobs"), "{failed}");
    let future = ["schedule", "backfill", "hourly", "--from", &from, "--to", "2100-01-01T00:00:00Z"];
    assert!(bed.run(&future).expect(1).stderr().contains("in the future"));
}

#[test]
fn a_crontab_is_taken_over_and_again() {
    let bed = Bed::start();
    std::fs::write(bed.path().join("crontab.txt"), CRONTAB).expect("a file");
    for _ in 0..2 {
        let import = bed.run(&["schedule", "import", "crontab.txt", "--owner", "web", "--partial"]).expect(2);
        assert!(
            import.stdout().contains("crontab-") && import.stdout().contains("not understood"),
            "{}",
            import.stdout()
        );
    }
    let listed = bed.run(&["schedule", "list", "--owner", "web", "--json"]).expect(0).stdout();
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["action"]["job"]["payload"]["env"], json!({"PATH": "***", "CRON_INPUT": "***"}));
}

/// Stores a file of schedules, one of which belongs to each owner in turn.
fn add_many(bed: &Bed, count: usize) -> std::path::PathBuf {
    let line = |number: usize| {
        let owner = ["web", "shop", "shop"][number % 3];
        let action = json!({"type": "job", "job": {"queue": "q", "kind": "k"}});
        json!({"id": format!("s{number:04}"), "owner": owner, "action": action, "period": {"cron": "@daily"}})
            .to_string()
    };
    let file = bed.path().join("schedules.jsonl");
    std::fs::write(&file, (0..count).map(line).collect::<Vec<_>>().join("\n")).expect("a file");
    file
}

fn listed(bed: &Bed, arguments: &[&str]) -> Vec<String> {
    let list = [&["schedule", "list", "--json", "-n", "0"], arguments].concat();
    let said = bed.run(&list).expect(0).stdout();
    let id = |line: &str| serde_json::from_str::<Value>(line).expect("json")["id"].as_str().expect("an id").to_owned();
    said.lines().map(id).collect()
}

#[test]
fn schedules_are_listed_by_a_query_and_a_mistake_in_one_is_shown_under_it() {
    let bed = Bed::start();
    add_many(&bed, 9);
    bed.run(&["schedule", "add", "--file", "schedules.jsonl"]).expect(0);
    assert_eq!(listed(&bed, &["owner: web"]), ["s0000", "s0003", "s0006"]);
    assert_eq!(listed(&bed, &["--owner", "shop", "id: (s0000 or s0001)"]), ["s0001"]);
    let table = bed.run(&["schedule", "list", "owner: web and id: s0003"]).expect(0).stdout();
    assert!(table.contains("s0003") && !table.contains("s0001"), "{table}");
    let refused = bed.run(&["schedule", "list", "onwer: web"]).expect(2).stderr();
    assert!(refused.contains("is `owner` meant?") && refused.contains("onwer: web\n  ^"), "{refused}");
}

#[test]
fn many_schedules_are_shown_before_they_are_changed_and_changed_only_on_a_word() {
    let bed = Bed::start();
    add_many(&bed, 60);
    bed.run(&["schedule", "add", "--file", "schedules.jsonl"]).expect(0);
    let seen = bed.run(&["schedule", "pause", "--kql", "owner: shop", "--dry-run"]).expect(0).stdout();
    assert!(seen.starts_with("40 schedules to pause, the first 20 of them:") && seen.contains("s0001"), "{seen}");
    let order = ["schedule", "pause", "--owner", "shop", "--reason", "a move"];
    let said = bed.run(&order).expect(2).stderr();
    assert!(said.contains("say --yes to pause them"), "nobody at a terminal can agree: {said}");
    assert_eq!(listed(&bed, &["paused: true"]), [""; 0]);
    let said = bed.run(&["schedule", "pause", "--owner", "shop", "--yes"]).expect(2).stderr();
    assert!(said.contains("--reason"), "{said}");

    let done = bed.run(&[&order[..], &["--yes"]].concat()).expect(0).stdout();
    assert!(done.ends_with("40 changed, 0 left alone, 0 failed\n"), "{done}");
    assert_eq!(listed(&bed, &["paused: true and paused_reason: \"a move\""]).len(), 40);
    let none = bed.run(&[&order[..], &["--yes"]].concat()).expect(0).stdout();
    assert_eq!(none.trim(), "0 schedules to pause");
    let resumed = bed.run(&["schedule", "resume", "--all", "--yes"]).expect(0).stdout();
    assert!(resumed.ends_with("40 changed, 0 left alone, 0 failed\n"), "{resumed}");
    let removed = bed.run(&["schedule", "remove", "--owner", "web", "--yes", "--json"]).expect(0).stdout();
    let reports: Vec<Value> = removed.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert_eq!((&reports[0]["dry_run"], &reports[1]["changed"]), (&json!(true), &json!(20)));
    assert_eq!(listed(&bed, &[]).len(), 40);

    for wrong in [
        &["schedule", "pause"][..],
        &["schedule", "pause", "s0001", "--owner", "shop"],
        &["schedule", "resume", "s0001", "--dry-run"],
        &["schedule", "remove", "--all", "--owner", "shop", "--dry-run"],
        &["schedule", "resume", "--owner", "shop", "--reason", "r"],
    ] {
        let said = bed.run(wrong).expect(2).stderr();
        assert!(said.contains("error:"), "{wrong:?}: {said}");
    }
    let both = bed.run(&["schedule", "pause", "s0001", "s0002"]).expect(0).stdout();
    assert_eq!(both, "s0001: paused by anonymous\ns0002: paused by anonymous\n");
}

#[test]
fn a_file_of_schedules_is_stored_line_by_line_from_any_line_on() {
    let bed = Bed::start();
    let file = add_many(&bed, 2_500);
    let mut text = std::fs::read_to_string(&file).expect("the file");
    text.insert_str(0, "\n{\"id\": \"wrong\"}\n");
    std::fs::write(&file, &text).expect("a file");
    let ended = bed.run(&["schedule", "add", "--file", "schedules.jsonl"]).expect(1);
    assert!(ended.stderr().contains("schedules.jsonl:2: action:"), "{}", ended.stderr());
    assert!(ended.stderr().contains("1 schedules were refused"), "{}", ended.stderr());
    let ids: Vec<String> = (0..2_500).map(|number| format!("s{number:04}")).collect();
    assert!(ended.stdout().lines().eq(&ids), "{}", &ended.stdout()[..100]);
    assert_eq!(listed(&bed, &[]), ids);

    let rest = bed.run(&["schedule", "add", "--file", "schedules.jsonl", "--from-line", "2500", "--json"]).expect(0);
    let items: Vec<Value> = rest.stdout().lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert_eq!(
        items,
        [
            json!({"status": 200, "id": "s2497"}),
            json!({"status": 200, "id": "s2498"}),
            json!({"status": 200, "id": "s2499"})
        ]
    );

    // The same line without an id is the same schedule.
    let action = json!({"type": "job", "job": {"queue": "q", "kind": "k"}});
    let line = json!({"owner": "none", "action": action, "period": {"cron": "@daily"}}).to_string();
    for _ in 0..2 {
        let mut add = leasehold(bed.path(), ["schedule", "add", "--file", "-"]);
        add.env("LEASEHOLD_SERVER", bed.server.url());
        Started::with_input(&mut add, &format!("{line}\n{line}")).end().expect(0);
    }
    assert_eq!(listed(&bed, &["--owner", "none"]).len(), 1);
    bed.run(&["schedule", "add", "--from-line", "3", "x", "@daily", "--", "true"]).expect(2);
    assert!(bed.run(&["schedule", "add", "--file", "nowhere"]).expect(2).stderr().contains("cannot read nowhere"));
}

#[test]
fn a_file_that_is_stored_in_part_says_with_which_line_to_go_on() {
    let place = tempfile::tempdir().expect("a directory");
    std::fs::write(place.path().join("schedules.jsonl"), "\n{\"id\": \"a\"}\n{\"id\": \"b\"}\n\n{\"id\": \"c\"}\n")
        .expect("a file");
    // A server that answers two lines and is gone.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let server = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("a call");
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("{\"id\": \"c\"}") {
            let mut part = [0; 4096];
            let read = connection.read(&mut part).expect("readable");
            assert_ne!(read, 0, "{}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&part[..read]);
        }
        let items = "{\"status\":201,\"id\":\"a\"}\n{\"status\":201,\"id\":\"b\"}\n";
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
        let answer = format!("{head}{:x}\r\n{items}\r\n", items.len());
        connection.write_all(answer.as_bytes()).expect("sent");
    });
    let mut add = leasehold(place.path(), ["schedule", "add", "--file", "schedules.jsonl"]);
    let ended = Started::of(add.env("LEASEHOLD_SERVER", url)).end().expect(3);
    server.join().expect("it has answered");
    assert_eq!(ended.stdout(), "a\nb\n");
    let said = ended.stderr();
    assert!(
        said.contains("schedules.jsonl: stored up to line 3; the same command with --from-line 4 goes on"),
        "{said}"
    );
}

#[test]
fn an_executor_of_its_own_is_refused_on_a_store_that_belongs_to_the_server() {
    let place = tempfile::tempdir().expect("a directory");
    let refused = run(place.path(), ["executor"]).expect(2).stderr();
    assert!(refused.contains("--store elasticsearch"), "{refused}");
}
