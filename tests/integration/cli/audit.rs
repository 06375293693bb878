//! `leasehold audit`.

use super::Bed;

#[test]
fn what_happened_to_a_job_is_read_though_the_job_is_gone() {
    let bed = Bed::audited();
    bed.submit(&["--id", "one", "--queue", "a", "--label", "team=blue"], "true");
    bed.submit(&["--id", "two", "--queue", "b"], "true");
    bed.run(&["cancel", "two", "--reason", "wrong\nmonth"]).expect(0);
    bed.run(&["delete", "two", "--reason", "a test"]).expect(0);
    bed.until_audited("one", "submitted");

    let of_two = bed.run(&["audit", "--job", "two"]).expect(0).stdout();
    let rows: Vec<&str> = of_two.lines().skip(2).collect();
    assert_eq!(rows.len(), 3, "{of_two}");
    assert!(rows[0].contains("deleted") && rows[0].ends_with("a test"), "{of_two}");
    assert!(rows[1].contains("cancelled") && rows[1].ends_with("wrong month"), "{of_two}");
    assert!(rows[2].contains("submitted") && rows[2].contains("anonymous"), "{of_two}");
    let event = bed.run(&["audit", "--queue", "a", "--event", "submitted", "--kind", "shell", "--json"]).json(0);
    assert_eq!(
        (&event["job"]["id"], &event["labels"]["team"], &event["number"]),
        (&"one".into(), &"blue".into(), &1.into())
    );
    let id = event["id"].as_str().expect("text");
    assert!(id.starts_with("1/") && id.ends_with("/one"), "{id}");
    assert_eq!(bed.run(&["audit", "-n", "0", "--output", "name"]).expect(0).stdout().lines().count(), 4);
    assert_eq!(bed.run(&["audit", "-n", "1", "--output", "name"]).expect(0).stdout().lines().count(), 1);
    assert!(bed.run(&["audit", "--output", "wide", "--by", "anonymous"]).expect(0).stdout().contains("team=blue"));
    for nothing in [["--by", "nobody"], ["--to", "yesterday"], ["--from", "2100-01-01"]] {
        let said = bed.run(&[&["audit"][..], &nothing].concat()).expect(0);
        assert_eq!((said.stdout().trim(), said.stderr().as_str()), ("no events match", ""), "{nothing:?}");
    }
    let absolute = bed.run(&["audit", "--from", "1h ago", "--time", "absolute", "--time-zone", "+02:00"]).expect(0);
    assert!(absolute.stdout().contains("+02:00"), "{}", absolute.stdout());
    assert!(bed.run(&["audit", "--event", "done"]).expect(2).stderr().contains("is not an event"));
    assert!(bed.run(&["audit", "--from", "soon"]).expect(2).stderr().contains("a time is one such as"));
    let backwards = bed.run(&["audit", "--from", "now", "--to", "yesterday"]).expect(1);
    assert!(backwards.stderr().contains("before `from`"), "{}", backwards.said());
}

#[test]
fn where_no_audit_is_kept_it_is_said_how_to_keep_one() {
    let bed = Bed::start();
    let said = bed.run(&["audit"]).expect(0);
    assert_eq!(said.stdout(), "no events match\n");
    assert!(said.stderr().contains("start the server or the monitor with --audit"), "{}", said.stderr());
    assert_eq!(bed.run(&["audit", "--json"]).expect(0).stdout(), "");
}
