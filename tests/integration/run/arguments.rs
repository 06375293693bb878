//! Commands, and arguments for a command, from wherever they come.

use std::fs;
use std::path::Path;

use crate::program::{Ended, Started, leasehold, lines, run};

fn with_input(place: &Path, arguments: &[&str], input: &str) -> Ended {
    Started::with_input(&mut leasehold(place, [&["run"], arguments].concat()), input).end()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn plain_lines_are_commands_beside_lines_of_json() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("jobs"), "# two\necho 'a  b' | tr a x\n\n{\"command\": [\"echo\", \"$c\"]}\n")
        .expect("written");
    let said = run(place.path(), ["run", "-k", "jobs"]).expect(0).stdout();
    assert_eq!(said, "x  b\n$c\n");
    assert_eq!(with_input(place.path(), &["-k", "-"], "echo 1\necho 2\n").expect(0).stdout(), "1\n2\n");
}

#[test]
fn each_line_is_an_argument_of_the_command_that_is_given() {
    let place = tempfile::tempdir().expect("a directory");
    let said =
        with_input(place.path(), &["-k", "-", "--", "echo", "{#}:{}"], "a  b\n{\"c\"}\n\n#d\n").expect(0).stdout();
    assert_eq!(said, "1:a  b\n2:{\"c\"}\n3:\n4:#d\n");
    fs::write(place.path().join("list"), "x\ny\n").expect("written");
    assert_eq!(run(place.path(), ["run", "-k", "list", "--", "echo"]).expect(0).stdout(), "x\ny\n");
    assert_eq!(with_input(place.path(), &["-k", "-0", "-", "--", "echo"], "a\nb\0c\0").expect(0).stdout(), "a\nb\nc\n");
}

#[test]
fn values_and_files_follow_the_command_and_make_every_combination() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("list"), "1\n2\n").expect("written");
    let said = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        run(place.path(), [&["run", "-k", "--"], &words[..]].concat()).expect(0).stdout()
    };
    assert_eq!(said("echo {} ::: a b"), "a\nb\n");
    assert_eq!(said("echo {2}-{1} ::: a b :::: list"), "1-a\n2-a\n1-b\n2-b\n");
    assert_eq!(said("echo ::: a b :::+ c d"), "a c\nb d\n");
    assert_eq!(said("echo {.} {/} {//} {/.} {1/} ::: x/y.tar.gz"), "x/y.tar y.tar.gz x y.tar y.tar.gz\n");
    assert_eq!(run(place.path(), ["run", "-k", "--", ":::", "echo a | tr a b", "echo c"]).expect(0).stdout(), "b\nc\n");
}

#[test]
fn a_slot_has_one_job_at_a_time() {
    let place = tempfile::tempdir().expect("a directory");
    let job = "mkdir slot-{%} && echo {%} $LEASEHOLD_SLOT >> slots && sleep 0.05 && rmdir slot-{%}";
    let words = ["run", "-j", "3", "--shell", "--", job, ":::", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    run(place.path(), words).expect(0);
    let slots = lines(&place.path().join("slots"));
    assert!(slots.len() == 9 && slots.iter().all(|line| ["1 1", "2 2", "3 3"].contains(&line.as_str())), "{slots:?}");
    let said = run(place.path(), ["run", "-j1", "--", "echo", "{}-{%}", ":::", "$x y"]).expect(0).stdout();
    assert_eq!(said, "$x y-1\n");
}

#[test]
fn who_goes_on_has_nothing_to_do_and_of_a_changed_list_only_new_arguments_run() {
    let place = tempfile::tempdir().expect("a directory");
    let ran = place.path().join("ran");
    let values = ["run", "--resume", "--shell", "--", "echo {} >> ran", ":::", "a", "a", "b"];
    run(place.path(), values).expect(0);
    assert_eq!(sorted(&lines(&ran).join("\n")), ["a", "a", "b"]);
    run(place.path(), values).expect(0);
    assert_eq!(lines(&ran).len(), 3, "what was done ran again");

    let list = |text| {
        fs::write(place.path().join("list"), text).expect("written");
        let words = ["run", "list", "--resume", "--shell", "--json", "--", "echo {} >> ran"];
        run(place.path(), words).last_json(0)["completed"].clone()
    };
    assert_eq!((list("c\nd\n"), list("e\nc\nd\n"), list("c\nd\ne\n")), (2.into(), 1.into(), 0.into()));
    let input = || {
        with_input(place.path(), &["--json", "--resume", "-", "--", "true"], "1\n2\n").last_json(0)["completed"].clone()
    };
    assert_eq!((input(), input()), (2.into(), 0.into()));
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_can() {
    let place = tempfile::tempdir().expect("a directory");
    for (arguments, word) in [
        (&[][..], ":::"),
        (&["--", "echo", "{}"], ":::"),
        (&["--shell", "--", "echo '{}'", ":::", "a"], "write {} without"),
        (&["--shell", "--", "echo \"{2/}\"", ":::", "a", ":::", "b"], "\"$EACH2_NAME\""),
        (&["--", "echo {} | wc", ":::", "a"], "--shell"),
        (&["--", "sh", "-c", "echo {}", ":::", "a"], "--shell"),
        (&["--", "echo", "{2}", ":::", "a"], "{2}"),
        (&["--", "echo", "::::"], "no file follows"),
        (&["--", "echo", "::::", "nothing"], "cannot read nothing"),
    ] {
        let said = run(place.path(), [&["run"], arguments].concat()).expect(2).stderr();
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
    assert!(!place.path().join("leasehold-data").exists(), "state was made for nothing");
}
